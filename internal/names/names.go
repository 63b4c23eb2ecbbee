// Package names checks names of jobs, stages, secrets, servers and attempts.
package names

// maxLength is the maximum length of a name in bytes.
const maxLength = 128

// Valid reports whether name has 1 to maxLength ASCII letters, digits, '.', '_' and '-', and begins
// with a letter or digit. Such a name is also a file name, and cannot be taken for a command's
// option.
func Valid(name string) bool {
	if name == "" || len(name) > maxLength {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

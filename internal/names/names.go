// Package names says which names of jobs, stages, secrets, servers and attempts are valid.
package names

// maxLength is how many bytes a name may have.
const maxLength = 128

// Valid reports whether name has 1 to maxLength ASCII letters, digits, '.', '_' and '-', and a letter
// or digit first: it is then also a file name, and no option of a command.
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

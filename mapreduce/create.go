package mapreduce

import "os"

// CreateFile creates the output file for writing. It replaces a regular file of an earlier run
// instead of writing to it, because the node may have linked that file into a result, or to
// reducers.
func CreateFile(path string) (*os.File, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

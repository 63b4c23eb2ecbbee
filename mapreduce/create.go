package mapreduce

import "os"

// CreateFile creates the file of an output for writing. The regular file of an earlier run is
// replaced and not written to: the node may have linked it into a result, or to reducers.
func CreateFile(path string) (*os.File, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

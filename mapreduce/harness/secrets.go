package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/drover-run/drover/mapreduce"
)

// WithSecrets is the first argument with which the harness adds variables to its environment and
// becomes another program: with-secrets FILE PROGRAM ARGUMENTS. The file has NAME=value entries,
// each ended by a zero byte. It is in memory, because values in the container's specification would
// be on disk, in the engine's records.
const WithSecrets = "with-secrets"

// maxSecretFile bounds the file: the kernel takes no larger environment.
const maxSecretFile = 8 << 20

// execWithSecrets returns only if the program cannot be started, with the exit code
// that a shell would have.
func execWithSecrets(file string, argv []string) int {
	env, err := addSecrets(os.Environ(), file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness: the secrets of the task:", err)
		return mapreduce.ExitSpec
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	path, err := findCommand(argv[0], dir, env)
	if err == nil {
		err = syscall.Exec(path, argv, env)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", argv[0], err)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}

// findCommand finds a program as the container engine does: only in PATH.
func findCommand(name, dir string, env []string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	if strings.Contains(name, "/") {
		return filepath.Join(dir, name), nil
	}
	for _, d := range filepath.SplitList(lookupEnv(env, "PATH")) {
		path := filepath.Join(d, name)
		if st, err := os.Stat(path); filepath.IsAbs(d) && err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// addSecrets returns an environment with the entries of a file, which override entries of the same
// name.
func addSecrets(env []string, file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	if err != nil {
		return nil, err
	}
	added := map[string]bool{}
	var out []string
	for entry := range bytes.SplitSeq(bytes.TrimSuffix(b, []byte{0}), []byte{0}) {
		name, _, ok := bytes.Cut(entry, []byte("="))
		if !ok || len(name) == 0 {
			return nil, errors.New("the file is damaged") // the error must not quote the secret
		}
		added[string(name)] = true
		out = append(out, string(entry))
	}
	for _, kv := range env {
		if name, _, _ := bytes.Cut([]byte(kv), []byte("=")); !added[string(name)] {
			out = append(out, kv)
		}
	}
	return out, nil
}

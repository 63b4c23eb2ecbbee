// Package repofiles walks the files of the repository, for tests that check all of them.
//
// Go caches the result of a test until a file or folder that the test read has changed. A listed
// folder counts as changed when an entry in it is newer. The root of the repository has entries
// that change with each `make`, git command and test run: bin, out, .cache, .git. A test that lists
// the root, and all others of its package, would run again each time. So Walk does not list the
// root, but uses the names in top.
package repofiles

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// top are the entries of the repository's root that Walk visits: all except hidden entries and
// results.
var top = []string{
	"CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "SECURITY.md", "Vagrantfile",
	"api", "cgroups", "cmd", "coordinator", "dist", "docs", "examples", "go.mod", "go.sum", "hdfs",
	"integration", "internal", "jobspec", "mapreduce", "node", "runtime", "scheduler", "ui",
}

// isResult reports whether a folder is hidden or holds results of a build or a test.
func isResult(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains([]string{"bin", "out", "node_modules"}, name)
}

// Walk calls visit with each file of the repository, as a path below root with slashes, in order.
func Walk(root string, visit func(file string) error) error {
	for _, name := range top {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && isResult(d.Name()):
				return filepath.SkipDir
			case d.IsDir():
				return nil
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return visit(filepath.ToSlash(file))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

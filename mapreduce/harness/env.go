package harness

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/drover-run/drover/internal/exechint"
	"github.com/drover-run/drover/mapreduce"
)

// environ returns the environment of the program: base (the harness's own, with
// the DROVER_… names that every task has), then the names of Hadoop Streaming
// (configuration names with "_" for "."), then their deprecated forms, which
// scripts still read, and last spec.Env. Later entries win. The input names of a
// combined split describe its first piece.
func environ(base []string, s *mapreduce.TaskSpec) []string {
	n := s.Identity
	isMap := strconv.FormatBool(s.Kind == mapreduce.KindMap)
	index, reduces, maps := strconv.Itoa(n.Index), strconv.Itoa(s.Reduces), strconv.Itoa(n.MapTasks)
	vars := []string{
		"mapreduce_job_id", n.Job, "mapred_job_id", n.Job,
		"mapreduce_job_name", n.JobName, "mapred_job_name", n.JobName,
		"mapreduce_task_id", n.Task, "mapred_tip_id", n.Task,
		"mapreduce_task_attempt_id", n.Attempt, "mapred_task_id", n.Attempt,
		"mapreduce_task_partition", index, "mapred_task_partition", index,
		"mapreduce_task_ismap", isMap, "mapred_task_is_map", isMap,
		"mapreduce_job_reduces", reduces, "mapred_reduce_tasks", reduces,
		"mapreduce_job_maps", maps, "mapred_map_tasks", maps,
		"PWD", s.WorkDir,
	}
	if s.Input != nil && len(s.Input.Pieces) > 0 {
		p := s.Input.Pieces[0]
		start, length := strconv.FormatInt(p.Offset, 10), strconv.FormatInt(p.Length, 10)
		vars = append(vars,
			"mapreduce_map_input_file", p.Path, "map_input_file", p.Path,
			"mapreduce_map_input_start", start, "map_input_start", start,
			"mapreduce_map_input_length", length, "map_input_length", length)
	}
	env := append([]string(nil), base...)
	for i := 0; i < len(vars); i += 2 {
		env = append(env, vars[i]+"="+vars[i+1])
	}
	return append(env, s.Env...)
}

func lookupEnv(env []string, key string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v
		}
	}
	return ""
}

// lookPath finds a program as a shell in dir would. Like Hadoop, it searches dir itself before the
// PATH of the program's environment. If only a file in dir that is not executable has the name,
// lookPath returns it, so that the error of its start gives the reason.
func lookPath(name, dir string, env []string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	if strings.Contains(name, "/") {
		return filepath.Join(dir, name), nil
	}
	path := lookupEnv(env, "PATH")
	if path == "" {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	for _, d := range append([]string{dir}, filepath.SplitList(path)...) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		full := filepath.Join(d, name)
		if st, err := os.Stat(full); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	if full := filepath.Join(dir, name); isRegular(full) {
		return full, nil
	}
	return "", fmt.Errorf("program %q: not found as an executable file in the task's folder or in PATH (%s); add it as a file of the stage or use an image that has it", name, path)
}

func isRegular(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// startHint returns what the user can do about a program that could not be started, or the bare
// error if nothing is known. path is where lookPath looked for the program, name is the program's
// name in the command.
func startHint(path, name string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isRegular(path):
		if filepath.IsAbs(name) {
			return "there is no such file: use an image that has it, or add it as a file of the stage"
		}
		name = filepath.Clean(name)
		return fmt.Sprintf("the task's folder has no such file: add file %q { source = %q } to the stage, or use an image that has it", name, name)
	case errors.Is(err, fs.ErrPermission) && isRegular(path):
		return "it is not executable: chmod +x the file before the job is submitted, write mode = \"0755\" in its file block, or name its interpreter in the command"
	default:
		return cmp.Or(exechint.Of(path, err), err.Error())
	}
}

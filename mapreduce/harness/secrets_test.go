package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSecretsBecomeVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("A=new\x00B=two\nlines\x00C=\x00"), 0o400); err != nil {
		t.Fatal(err)
	}
	got, err := addSecrets([]string{"A=old", "Z=z"}, file)
	if want := []string{"A=new", "B=two\nlines", "C=", "Z=z"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, text := range []string{"", "hidden\x00", "=hidden\x00"} {
		if err := os.WriteFile(file+"2", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := addSecrets(nil, file+"2"); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestExecWithSecrets replaces a process by programs, as in a container.
func TestExecWithSecrets(t *testing.T) {
	if at := os.Getenv("DROVER_TEST_SECRETS"); at != "" {
		os.Exit(Main(append([]string{WithSecrets, at}, strings.Split(os.Getenv("DROVER_TEST_ARGV"), " ")...)))
	}
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("TOKEN=the value\x00"), 0o400); err != nil {
		t.Fatal(err)
	}
	for argv, want := range map[string]struct {
		out  string
		code int
	}{
		"printenv TOKEN":     {"the value\n", 0},
		"no-such-program-x1": {"", 127},
		"/no/such/program":   {"", 127},
		"/":                  {"", 126},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestExecWithSecrets$")
		cmd.Env = append(os.Environ(), "DROVER_TEST_SECRETS="+file, "DROVER_TEST_ARGV="+argv)
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != want.code || string(out) != want.out {
			t.Errorf("%s: %q, exit code %d, %v; want %q, %d", argv, out, code, err, want.out, want.code)
		}
	}
}

package record

import (
	"fmt"
	"os/exec"
	"strings"
)

// CommitName returns the present commit, with "-dirty" if files other than the
// measurements have changed.
func CommitName() (string, error) {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	name := strings.TrimSpace(string(head))
	changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)docs/measured").Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	if len(changed) > 0 {
		name += "-dirty"
	}
	return name, nil
}

package containerd

import "testing"

func TestOptionsForCriu(t *testing.T) {
	for what, c := range map[string]struct{ operator, cgroup, want string }{
		"a dump":                          {"", "", "verbosity=3\n"},
		"a restore":                       {"", "/drover/tasks/a/c", "verbosity=3\ncgroup-root /drover/tasks/a/c\n"},
		"the operator's word is the last": {"verbosity=4\nghost-limit 64M\n", "/x", "verbosity=3\nverbosity=4\nghost-limit 64M\ncgroup-root /x\n"},
	} {
		if got := criuOptions(c.operator, c.cgroup); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", what, got, c.want)
		}
	}
}

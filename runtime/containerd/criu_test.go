package containerd

import "testing"

func TestOptionsForCriu(t *testing.T) {
	for what, c := range map[string]struct{ operator, cgroup, want string }{
		"a dump":                          {"", "", ownCriuOptions},
		"a restore":                       {"", "/drover/tasks/a/container", ownCriuOptions + "leave-stopped\ncgroup-root /drover/tasks/a/container\n"},
		"the operator's word is the last": {"verbosity=4\nghost-limit 64M\n", "/x", ownCriuOptions + "verbosity=4\nghost-limit 64M\nleave-stopped\ncgroup-root /x\n"},
	} {
		if got := criuOptions(c.operator, c.cgroup); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", what, got, c.want)
		}
	}
}

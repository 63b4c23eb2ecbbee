package containerd

import "testing"

func TestOptionsForCriu(t *testing.T) {
	c := criuFiles("/state")
	const standIns = "external mnt[drover-dev]:/state/.drover-dev\nexternal mnt[drover-empty]:/state/.drover-empty\n"
	for what, c := range map[string]struct{ operator, further, want string }{
		"a dump":                          {"", externalOptions(map[string]string{"/run": standInEmpty, "/dev": standInDev}), ownCriuOptions + "external mnt[/dev]:drover-dev\nexternal mnt[/run]:drover-empty\n"},
		"a restore":                       {"", c.restoreOptions("/drover/tasks/a/container"), ownCriuOptions + "leave-stopped\ncgroup-root /drover/tasks/a/container\n" + standIns},
		"the operator's word is the last": {"verbosity=4\nghost-limit 64M\n", c.restoreOptions("/x"), ownCriuOptions + "verbosity=4\nghost-limit 64M\nleave-stopped\ncgroup-root /x\n" + standIns},
	} {
		if got := criuOptions(c.operator, c.further); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", what, got, c.want)
		}
	}
}

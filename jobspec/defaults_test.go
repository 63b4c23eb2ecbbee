package jobspec

import "testing"

// A group of many tiny tasks does not claim a node's whole disk by default.
func TestDefaultDiskFollowsTheSizeOfATask(t *testing.T) {
	for name, c := range map[string]struct {
		kind      StageKind
		cpu, want int64
	}{
		"no cpu given":        {KindGroup, 0, 1 << 30},
		"two cores":           {KindGroup, 2000, 1 << 30},
		"half a core":         {KindGroup, 500, 500 * (1 << 30 / 1000)},
		"the least cpu":       {KindGroup, minCPU, 64 << 20},
		"a small map task":    {KindMap, minCPU, 1 << 30},
		"a small reduce task": {KindReduce, minCPU, 1 << 30},
		"an invalid cpu":      {KindGroup, -5, 64 << 20},
	} {
		j := &Job{Name: "j", Stages: []Stage{{Name: "s", Kind: c.kind, Resources: Resources{CPU: c.cpu}}}}
		SetDefaults(j)
		once := j.Stages[0].Disk
		SetDefaults(j)
		if once != c.want || j.Stages[0].Disk != once {
			t.Errorf("%s: %d, again %d, want %d", name, once, j.Stages[0].Disk, c.want)
		}
	}
}

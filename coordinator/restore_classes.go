package coordinator

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// restoreClasses groups the nodes by everything that facts.CanRestore compares. State, which knows
// only names of classes, thus permits the same migrations. There are few classes. A node that
// registers with a new class is compared with each class; when a class appears or disappears, each
// node is visited.
type restoreClasses struct {
	of      map[int32]string // the class of each node
	classes map[string]*restoreClass
}

// restoreClass is one class of nodes.
type restoreClass struct {
	nodes    int                // of this class; at 0 it is deleted
	info     *droverv1.NodeInfo // of any of them
	restores []string           // the other classes whose checkpoints these nodes can restore, sorted; replaced, never changed
}

func newRestoreClasses(nodes []*facts.Node) *restoreClasses {
	c := &restoreClasses{of: map[int32]string{}, classes: map[string]*restoreClass{}}
	for _, n := range nodes {
		c.put(n)
	}
	return c
}

// put adds a node, or changes its class. It returns the classes that can now restore other classes
// than before, nil for none.
func (c *restoreClasses) put(n *facts.Node) (changed map[string]bool) {
	class := restoreClassOf(n.Info)
	old, had := c.of[n.ID]
	if had && old == class {
		return nil
	}
	c.of[n.ID] = class
	changed = map[string]bool{}
	if had {
		c.remove(old, changed)
	}
	c.add(class, n.Info, changed)
	return changed
}

// add counts a node of a class.
func (c *restoreClasses) add(class string, info *droverv1.NodeInfo, changed map[string]bool) {
	if c.classes[class] == nil {
		added := &restoreClass{info: info}
		for name, other := range c.classes {
			if facts.CanRestore(other.info, info) {
				added.restores = append(added.restores, name)
			}
			if facts.CanRestore(info, other.info) {
				i, _ := slices.BinarySearch(other.restores, class)
				other.restores = slices.Insert(slices.Clone(other.restores), i, class)
				changed[name] = true
			}
		}
		slices.Sort(added.restores)
		c.classes[class], changed[class] = added, true
	}
	c.classes[class].nodes++
}

// remove removes a node from the count of its class.
func (c *restoreClasses) remove(class string, changed map[string]bool) {
	gone := c.classes[class]
	if gone.nodes--; gone.nodes > 0 {
		return
	}
	delete(c.classes, class)
	for name, other := range c.classes {
		if i, ok := slices.BinarySearch(other.restores, class); ok {
			other.restores = slices.Delete(slices.Clone(other.restores), i, i+1)
			changed[name] = true
		}
	}
}

// restoredBy returns the other classes whose checkpoints nodes of a class can restore, sorted.
func (c *restoreClasses) restoredBy(class string) []string {
	if k := c.classes[class]; k != nil {
		return k.restores
	}
	return nil
}

// restoreClassOf returns a name for everything that facts.CanRestore compares of a node: nodes of
// one class can restore each other's checkpoints. It is "" for nodes that neither make nor restore
// checkpoints.
func restoreClassOf(i *droverv1.NodeInfo) string {
	if !slices.Contains(i.GetLevels(), droverv1.Level_LEVEL_CHECKPOINTED) {
		return ""
	}
	flags := slices.Clone(i.GetCpuFlags())
	slices.Sort(flags)
	sum := sha256.Sum256([]byte(strings.Join(flags, " ")))
	v := i.GetVersions()
	return fmt.Sprintf("%s cpu %x kernel %s criu %s runc %s dump %s", i.GetDriver(), sum[:6], v["kernel"], v["criu"], v["runc"], v["dump"])
}

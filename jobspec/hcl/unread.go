package hcl

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// unreadFields are the fields of a job, by path, that a file gives and that could not be read.
// Errors of jobspec.Validate about them only follow from a problem that was reported already.
type unreadFields struct {
	unread    map[string]bool // fields with a problem of their own, and lists of blocks of which one is missing
	meant     map[string]bool // fields that an unknown name is near to
	unknownIn map[string]bool // bodies with an unknown name that may mean any field
	elsewhere map[string]bool // names of fields that stand in a body that does not have them
}

// addUnknown notes what an unknown name in the body at a path may mean.
func (d *decoder) addUnknown(path string, m meaning, blocks map[string]blockSpec) {
	spec, isBlock := blocks[m.here]
	switch {
	case m.here != "" && isBlock && !spec.once:
		d.unread[joinPath(path, m.here)] = true
		return
	case m.here != "":
		d.meant[joinPath(path, m.here)] = true
		return
	}
	d.unknownIn[path] = true
	d.elsewhere[m.elsewhere] = true
	if m.elsewhere == "stage" {
		d.unread["stage"] = true
	}
	for name, spec := range blocks {
		if m.isBlock && m.elsewhere == "" && !spec.once {
			d.unread[joinPath(path, name)] = true
		}
	}
}

// alsoUnread has a field that two attributes can give be unread if the one at from is.
func (u *unreadFields) alsoUnread(from, field string) {
	u.unread[field] = u.unread[field] || u.unread[from]
	u.meant[field] = u.meant[field] || u.meant[from]
}

func newUnreadFields() unreadFields {
	return unreadFields{unread: map[string]bool{}, meant: map[string]bool{}, unknownIn: map[string]bool{}, elsewhere: map[string]bool{}}
}

// isRead reports whether the field at a path was read, or is not in the file at all. given says
// that the file has it.
func (u *unreadFields) isRead(path string, given bool) bool {
	for p := path; p != ""; p = pathAround(p) {
		if u.unread[p] {
			return false
		}
	}
	if given {
		return true
	}
	body, name := "", path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		body, name = path[:i], path[i+1:]
	}
	return !u.meant[path] && !u.unknownIn[body] && !u.elsewhere[name]
}

// pathAround returns the path of the field that a path is a part of, "" if there is none. A block
// with a name is one of a list, and is read whether the others are or not.
func pathAround(path string) string {
	i := strings.LastIndexAny(path, ".[")
	if i < 0 || strings.HasSuffix(path, `"]`) {
		return ""
	}
	return path[:i]
}

// mislabelled returns the blocks of a body that HCL leaves out since they have too few names or too
// many, which it has reported. Those that are read have as many as they should, the last of them
// empty where one is missing.
func (d *decoder) mislabelled(body hcl.Body, path string, blocks map[string]blockSpec) (out hcl.Blocks) {
	syntax, ok := body.(*hclsyntax.Body)
	if !ok {
		return nil
	}
	for _, x := range syntax.Blocks {
		spec, known := blocks[x.Type]
		if !known || len(x.Labels) == spec.labels {
			continue
		}
		b := x.AsHCLBlock()
		if len(x.Labels) < spec.labels {
			b.Labels, b.LabelRanges = append(b.Labels, ""), append(b.LabelRanges, b.TypeRange)
			list := joinPath(path, x.Type)
			switch x.Type {
			case "job":
				d.unread["name"] = true
			case "stage":
				d.unread[list], d.unread[fmt.Sprintf("%s[%q].name", list, "")] = true, true
			default:
				d.unread[fmt.Sprintf("%s[%q]", list, "")] = true
			}
		}
		b.Labels, b.LabelRanges = b.Labels[:spec.labels], b.LabelRanges[:spec.labels]
		out = append(out, b)
	}
	return out
}

// Package guest holds what runs inside a test machine before the agent does: the script of the initial RAM disk and
// the machine's init. It only carries the files; package build puts them into place.
package guest

import "embed"

// Files are the scripts and settings of the machine.
//
//go:embed initrd-init.sh init.sh containerd.toml
var Files embed.FS

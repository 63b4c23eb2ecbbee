// Package guest embeds the files that run inside a test machine before the agent: the script of the
// initial RAM disk and the machine's init. Package build installs them.
package guest

import "embed"

// Files are the scripts and settings of the machine.
//
//go:embed initrd-init.sh init.sh containerd.toml
var Files embed.FS

package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/integration/internal/cache"
)

// debianSuite is the Debian release of the machines.
const debianSuite = "trixie"

// guestPackages are installed in every machine in addition to Debian's minimal base.
var guestPackages = []string{
	"busybox-static", "ca-certificates", "containerd", "criu", "crun", "e2fsprogs", "iproute2", "iptables", "kmod", "mount",
	"procps", "python3-minimal", "quota", "runc", "tar", "util-linux",
}

// kernelPackage is a meta package; it depends on the package with the current version.
const kernelPackage = "linux-image-cloud-amd64"

// debianRevision must be raised when the contents of the Debian entry change.
const debianRevision = "1"

// initrdModules are the modules that a machine needs before it has mounted its root disk, or
// always.
var initrdModules = []string{"virtio_blk", "virtio_net", "overlay"}

// Files of the Debian entry.
const (
	debianRoot   = "root"      // root file system as a folder
	DebianDisk   = "root.ext4" // root file system as a disk image
	DebianKernel = "vmlinuz"
	debianMods   = "modules" // modules for the initial RAM disk, numbered in the order of loading
)

// debianKey returns the key of the machines' system. It does not include package versions: a cache
// retains its versions until the entry's folder is removed.
func debianKey() cache.Key {
	return cache.KeyOf(append([]string{debianRevision, debianSuite, kernelPackage, strings.Join(initrdModules, " ")}, guestPackages...)...)
}

// Debian returns the entry with the machines' root file system and kernel, made by mmdebstrap from
// the archive of the host's apt. Making it needs root, about 30 s, and 200 MB of download.
func Debian(ctx context.Context, c cache.Dir, p *Progress) (*cache.Entry, error) {
	return c.Get("debian", debianKey(), func(dir string) error {
		if err := Require(ForMachines); err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return errors.New("making the machines' root file system needs root")
		}
		if err := p.step("root file system, Debian "+debianSuite, func() error { return makeRoot(ctx, dir) }); err != nil {
			return err
		}
		return p.step("kernel and disk image", func() error { return makeKernelAndDisk(ctx, dir) })
	})
}

// aptSources returns apt source lines for the suite with the mirrors of the host's sources.
func aptSources(ctx context.Context) ([]string, error) {
	out, err := runCommand(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"))
	if err != nil {
		return nil, err
	}
	return sourcesFor(out, debianSuite)
}

// sourcesFor picks a Debian main archive and its security archive from lines "URI RELEASE
// COMPONENT".
func sourcesFor(targets, suite string) ([]string, error) {
	var main, security string
	for _, line := range strings.Split(targets, "\n") {
		w := strings.Fields(line)
		if len(w) != 3 || w[2] != "main" {
			continue
		}
		switch release := w[1]; {
		case strings.HasSuffix(release, "-security") && security == "":
			security = w[0]
		case isDebian(release) && main == "":
			main = w[0]
		}
	}
	if main == "" {
		return nil, errors.New("no Debian archive among the host's apt sources: add one (component main) and run apt-get update")
	}
	const keys = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	lines := []string{fmt.Sprintf("deb %s %s %s main", keys, main, suite)}
	if security != "" {
		lines = append(lines, fmt.Sprintf("deb %s %s %s-security main", keys, security, suite))
	}
	return lines, nil
}

func isDebian(release string) bool {
	switch release {
	case "bullseye", "bookworm", "trixie", "forky", "duke", "sid", "oldstable", "stable", "testing", "unstable":
		return true
	default:
		return false
	}
}

// makeRoot makes the root file system and downloads the kernel's package, in one mmdebstrap call.
func makeRoot(ctx context.Context, dir string) error {
	sources, err := aptSources(ctx)
	if err == nil && sources == nil {
		err = errors.New("no sources")
	}
	if err != nil {
		return err
	}
	download := `cd "$TESTBED_DIR" && export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" && ` +
		`apt-get -q download $(apt-cache depends ` + kernelPackage + ` | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')`
	args := []string{"--mode=root", "--variant=minbase", "--dpkgopt=force-unsafe-io", "--aptopt=Acquire::Languages none",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--include=" + strings.Join(guestPackages, ","), "--customize-hook=" + download,
		debianSuite, filepath.Join(dir, debianRoot)}
	c := exec.CommandContext(ctx, "mmdebstrap", append(args, sources...)...)
	c.Env = append(os.Environ(), "TESTBED_DIR="+dir)
	_, err = runCommand(c)
	return err
}

// makeKernelAndDisk unpacks the kernel (installing it would need a boot loader and initramfs tools)
// and its modules (xz is slow on an emulated CPU), collects the modules for the initial RAM disk,
// and makes the disk image.
func makeKernelAndDisk(ctx context.Context, dir string) error {
	root := filepath.Join(dir, debianRoot)
	packages, err := filepath.Glob(filepath.Join(dir, "linux-image-*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("%d kernel packages were downloaded, want 1", len(packages))
	}
	unpacked := filepath.Join(dir, "kernel")
	if _, err := runCommand(exec.CommandContext(ctx, "dpkg-deb", "-x", packages[0], unpacked)); err != nil {
		return err
	}
	kernels, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("the kernel package contains %d kernels, want 1", len(kernels))
	}
	version := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	script := strings.Join([]string{
		`set -e`,
		`mv "$K"/boot/vmlinuz-* "$D/` + DebianKernel + `"`,
		`mkdir -p "$R/usr/lib/modules"`,
		`for m in "$K/usr/lib/modules" "$K/lib/modules"; do if [ -d "$m" ]; then mv "$m"/* "$R/usr/lib/modules/"; fi; done`,
		`find "$R/usr/lib/modules" -name '*.ko.xz' -print0 | xargs -0 -r -P2 -n50 xz -d`,
		`/sbin/depmod -b "$R" "$V"`,
		`mkdir "$D/` + debianMods + `"; n=10`,
		`for m in ` + strings.Join(initrdModules, " ") + `; do /sbin/modprobe -d "$R" -S "$V" --show-depends $m; done | sed -n 's/^insmod //p' |`,
		`  while read -r f rest; do b=$(basename "$f"); [ -n "$(ls "$D/` + debianMods + `" | grep -x "[0-9]*-$b" || true)" ] || { n=$((n+1)); cp "$f" "$D/` + debianMods + `/$n-$b"; }; done`,
		`rm -rf "$K" "$D"/*.deb "$R"/var/cache/apt/* "$R"/var/lib/apt/lists/*; : >"$R/etc/machine-id"`,
		// mke2fs -d preserves owners and needs no loop device. The disk has a third more space than
		// the files, for packages that a test installs.
		`/sbin/mke2fs -q -F -t ext4 -O ^has_journal -m0 -d "$R" "$D/` + DebianDisk + `" $(( $(du -sm "$R" | cut -f1) * 13 / 10 + 64 ))M`,
	}, "\n")
	c := exec.CommandContext(ctx, "sh", "-c", script)
	c.Env = append(os.Environ(), "K="+unpacked, "R="+root, "D="+dir, "V="+version)
	if _, err := runCommand(c); err != nil {
		return err
	}
	mods, err := os.ReadDir(filepath.Join(dir, debianMods))
	if err == nil && len(mods) == 0 {
		err = errors.New("no kernel modules found for the initial RAM disk")
	}
	return err
}

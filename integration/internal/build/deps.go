package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Dep is something the host must have.
type Dep struct {
	Package string // Debian's
	Proof   string // a program in PATH, or an absolute path (may hold *), that shows it is there
	Why     string
	Group   Group
}

// Group says which part of the bed a dependency is for.
type Group int

// The groups.
const (
	ForHDFS     Group = iota + 1 // HDFS alone
	ForMachines                  // virtual machines
	ForCode                      // regenerating code; optional
)

func (g Group) String() string {
	switch g {
	case ForHDFS:
		return "hdfs"
	case ForMachines:
		return "machines"
	case ForCode:
		return "code"
	default:
		return fmt.Sprintf("Group(%d)", int(g))
	}
}

// Deps lists all of them. Go itself is not among them: it runs this.
func Deps() []Dep {
	return []Dep{
		{"openjdk-17-jdk-headless", "javac", "runs Apache HDFS and compiles its host program", ForHDFS},
		{"maven", "mvn", "fetches the jars of Apache HDFS", ForHDFS},
		{"iproute2", "ip", "brings up the bed's network", ForHDFS},
		{"qemu-system-x86", "qemu-system-x86_64", "runs the machines", ForMachines},
		{"mmdebstrap", "mmdebstrap", "makes the machines' root file system", ForMachines},
		{"debian-archive-keyring", "/usr/share/keyrings/debian-archive-keyring.gpg", "checks the packages in it", ForMachines},
		{"busybox-static", "/bin/busybox", "first programs of a booting machine", ForMachines},
		{"cpio", "cpio", "packs the initial RAM disk", ForMachines},
		{"kmod", "/sbin/depmod", "finds kernel modules", ForMachines},
		{"e2fsprogs", "/sbin/mke2fs", "makes disks", ForMachines},
		{"util-linux", "/sbin/mkswap", "makes swap, enters namespaces", ForMachines},
		{"xz-utils", "xz", "unpacks kernel modules", ForMachines},
		{"protobuf-compiler", "protoc", "regenerates api/ (only after a change there)", ForCode},
		{"libprotobuf-dev", "/usr/include/google/protobuf/timestamp.proto", "standard types for protoc", ForCode},
	}
}

// Present tells whether the host has it.
func (d Dep) Present() bool {
	if !filepath.IsAbs(d.Proof) {
		_, err := exec.LookPath(d.Proof)
		return err == nil
	}
	for _, p := range []string{d.Proof, "/usr" + d.Proof} { // with and without merged /usr
		if m, err := filepath.Glob(p); err == nil && len(m) > 0 {
			return true
		}
	}
	return false
}

// Missing returns those of some groups (none named: all) that the host lacks.
func Missing(groups ...Group) []Dep {
	var missing []Dep
	for _, d := range Deps() {
		if !d.Present() && (len(groups) == 0 || contains(groups, d.Group)) {
			missing = append(missing, d)
		}
	}
	return missing
}

func contains(groups []Group, g Group) bool {
	for _, x := range groups {
		if x == g {
			return true
		}
	}
	return false
}

// Need returns an error that names what the host lacks, and the cure.
func Need(groups ...Group) error {
	missing := Missing(groups...)
	if len(missing) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("this host lacks, for the test bed:\n")
	for _, d := range missing {
		fmt.Fprintf(&b, "  %-26s %s (%s)\n", d.Package, d.Why, d.Proof)
	}
	b.WriteString("install them with: make deps   (or: go run ./integration/cmd/bed deps -install; the names are Debian's)")
	return errors.New(b.String())
}

// Install installs what is missing with apt, as root on Debian and its kin; elsewhere it says what to do.
func Install(ctx context.Context, p *Progress) error {
	missing := Missing()
	if len(missing) == 0 {
		p.Say("all packages are there")
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%w\nthis host has no apt-get: install them in its own way", Need())
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w\ninstalling needs root", Need())
	}
	var names []string
	for _, d := range missing {
		names = append(names, d.Package)
	}
	return p.Step("installing "+strings.Join(names, " "), func() error {
		if err := apt(ctx, "update"); err != nil {
			return err
		}
		if err := apt(ctx, append([]string{"install", "-y", "--no-install-recommends"}, names...)...); err != nil {
			return err
		}
		return Need()
	})
}

// apt runs apt-get without questions.
func apt(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	_, err := run(c)
	return err
}

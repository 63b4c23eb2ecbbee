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

// Dep is a package that the host must have.
type Dep struct {
	Package string // name of the Debian package
	probe   string // a program in PATH, or an absolute path (may contain *), that exists if the package is installed
	Why     string
	Group   Group
}

// Group is the part of the test bed that needs a package.
type Group int

// The groups.
const (
	ForHDFS     Group = iota + 1 // HDFS alone
	ForMachines                  // virtual machines
	ForCode                      // generating code; optional
	ForPages                     // the web page in a browser
)

func (g Group) String() string {
	switch g {
	case ForHDFS:
		return "hdfs"
	case ForMachines:
		return "machines"
	case ForCode:
		return "code"
	case ForPages:
		return "pages"
	default:
		return fmt.Sprintf("Group(%d)", int(g))
	}
}

// Deps lists all packages except Go, which runs this program. Package names contain no version,
// because other Debian releases have other versions, and apt-get installs all packages or none.
func Deps() []Dep {
	return []Dep{
		{"default-jdk-headless", "javac", "runs Apache HDFS and compiles its host program", ForHDFS},
		{"maven", "mvn", "fetches the jars of Apache HDFS", ForHDFS},
		{"iproute2", "ip", "brings up the test bed's network", ForHDFS},
		{"iptables", "iptables", "cuts coordinators off in `make chaos`", ForMachines},
		{"qemu-system-x86", "qemu-system-x86_64", "runs the machines", ForMachines},
		{"mmdebstrap", "mmdebstrap", "makes the machines' root file system", ForMachines},
		{"debian-archive-keyring", "/usr/share/keyrings/debian-archive-keyring.gpg", "checks the packages in it", ForMachines},
		{"busybox-static", "/bin/busybox", "first programs of a booting machine", ForMachines},
		{"cpio", "cpio", "packs the initial RAM disk", ForMachines},
		{"kmod", "/sbin/depmod", "finds kernel modules", ForMachines},
		{"e2fsprogs", "/sbin/mke2fs", "makes disks", ForMachines},
		{"util-linux", "/sbin/mkswap", "makes swap, enters namespaces", ForMachines},
		{"xz-utils", "xz", "unpacks kernel modules", ForMachines},
		{"curl", "curl", "reads from WebHDFS in the tutorial", ForMachines},
		{"chromium", "chromium", "drives the web page as a person does, and takes its pictures", ForPages},
		{"node-typescript", "tsc", "checks the types of the web page's scripts", ForPages},
		{"npm", "npm", "fetches the linter of the web page's scripts, and runs their tests", ForPages},
		{"protobuf-compiler", "protoc", "regenerates api/ (only after a change there)", ForCode},
		{"libprotobuf-dev", "/usr/include/google/protobuf/timestamp.proto", "standard types for protoc", ForCode},
	}
}

// Present reports whether the host has the package.
func (d Dep) Present() bool {
	if !filepath.IsAbs(d.probe) {
		_, err := exec.LookPath(d.probe)
		return err == nil
	}
	for _, p := range []string{d.probe, "/usr" + d.probe} { // with and without merged /usr
		if m, err := filepath.Glob(p); err == nil && len(m) > 0 {
			return true
		}
	}
	return false
}

// missingPackages returns the packages of the given groups (none: all) that the host lacks.
func missingPackages(groups ...Group) []Dep {
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

// Require returns an error that names the missing packages and how to install them.
func Require(groups ...Group) error {
	missing := missingPackages(groups...)
	if len(missing) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("this host lacks, for the test bed:\n")
	for _, d := range missing {
		fmt.Fprintf(&b, "  %-26s %s (%s)\n", d.Package, d.Why, d.probe)
	}
	b.WriteString("install them with: make deps   (or: go run ./integration/cmd/testbed deps -install; the names are Debian's)")
	return errors.New(b.String())
}

// Install installs the missing packages with apt, as root; without apt-get it returns an error.
func Install(ctx context.Context, p *Progress) error {
	missing := missingPackages()
	if len(missing) == 0 {
		p.printf("all packages are installed")
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%w\nthis host has no apt-get: install them with its own package manager", Require())
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w\ninstalling needs root", Require())
	}
	var names []string
	for _, d := range missing {
		names = append(names, d.Package)
	}
	return p.step("installing "+strings.Join(names, " "), func() error {
		if err := runAptGet(ctx, "update"); err != nil {
			return err
		}
		if err := runAptGet(ctx, append([]string{"install", "-y", "--no-install-recommends"}, names...)...); err != nil {
			return err
		}
		return Require()
	})
}

// runAptGet runs apt-get non-interactively.
func runAptGet(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	_, err := runCommand(c)
	return err
}

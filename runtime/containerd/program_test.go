package containerd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
)

type (
	snapshotInfo = snapshots.Info
	contentInfo  = content.Info
)

// First arguments that make the test binary another program.
const (
	confinedMarker = "drover-confined"
	hogMarker      = "drover-hog"
	countMarker    = "drover-count"
)

func init() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case confinedMarker:
		confined()
		os.Exit(0)
	case countMarker:
		count(len(os.Args) > 2)
	case hogMarker:
		os.Exit(hog(os.Args[2:]))
	}
}

// confined prints what a task can see and do in its container.
func confined() {
	host, _ := os.Hostname()
	dir, _ := os.Getwd()
	fmt.Println("uid", os.Getuid(), "gid", os.Getgid())
	fmt.Println("host", host)
	fmt.Println("dir", dir)
	fmt.Println("env", os.Getenv("FROM_IMAGE"), os.Getenv("MINE"))
	ifs, _ := net.Interfaces()
	var names []string
	for _, i := range ifs {
		names = append(names, i.Name)
	}
	fmt.Println("interfaces", strings.Join(names, " "))
	status, _ := os.ReadFile("/proc/self/status")
	for _, key := range []string{"NoNewPrivs", "Seccomp", "CapEff", "CapBnd"} {
		for _, l := range strings.Split(string(status), "\n") {
			if v, ok := strings.CutPrefix(l, key+":"); ok {
				fmt.Println(key+":", strings.TrimSpace(v))
			}
		}
	}
	for _, dir := range []string{"/", "/ro", "/task", "/tmp", "/dev", "/dev/shm", "/run"} {
		f, err := os.Create(dir + "/new")
		if err == nil {
			f.Close()
		}
		fmt.Println("write", dir, word(err))
	}
	for _, dir := range []string{"/run", "/proc/acpi", "/sys/firmware"} {
		inside, err := os.ReadDir(dir)
		fmt.Println("inside", dir, len(inside), word(err))
	}
	fmt.Println("write /proc/sys/kernel/hostname", word(os.WriteFile("/proc/sys/kernel/hostname", []byte("x"), 0)))
	fmt.Println("mount", word(unix.Mount("t", "/tmp", "tmpfs", 0, "")))
	_, err := os.ReadDir("/other")
	fmt.Println("read /other", word(err))
	fmt.Println("device", word(unix.Mknod("/task/device", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0)))))
	_, err = os.Open("/dev/kmsg")
	fmt.Println("kernel log", word(err))
	fmt.Println("module", word(unix.InitModule([]byte("\x7fELF"), "")))
	_, _, errno := unix.Syscall(unix.SYS_BPF, 0, 0, 0)
	fmt.Println("bpf", word(errnoError(errno)))
	fmt.Println("become root", word(unix.Setuid(0)))
	fmt.Println("namespace", word(unix.Unshare(unix.CLONE_NEWUSER)))
	_, err = net.DialTimeout("tcp", "10.255.255.1:80", time.Second)
	fmt.Println("connect", word(err))
	_, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	fmt.Println("socket to the hypervisor", word(err))
	fmt.Println("processes", len(numbered("/proc")))
	fmt.Println("trace the parent", word(unix.PtraceAttach(os.Getppid())))
	fmt.Println("project of /task/new", word(setProject("/task/new")))
	fmt.Println("flags of /task", word(setFlags("/task")))
	group, _ := os.ReadFile("/proc/self/cgroup")
	fmt.Print("cgroup ", string(group))
	fmt.Println("pid", os.Getpid())
	adj, _ := os.ReadFile("/proc/self/oom_score_adj")
	fmt.Print("oom_score_adj ", string(adj))
	fmt.Println("end")
}

// errnoError returns nil for no error number.
func errnoError(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// numbered returns the names in a folder that are numbers.
func numbered(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// setProject moves an own file out of the project that its quota is counted for.
// The upper half of the request, which the kernel ignores, is set.
func setProject(path string) error {
	f, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	var attr [28]byte
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0x801c581f, uintptr(unsafe.Pointer(&attr))); errno != 0 {
		panic(errno) // reading is allowed
	}
	clear(attr[12:16])
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 1<<40|0x401c5820, uintptr(unsafe.Pointer(&attr))); errno != 0 {
		return errno
	}
	return nil
}

// setFlags writes a folder's flags as they are.
func setFlags(path string) error {
	f, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		panic(err)
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

func word(err error) string {
	if err != nil {
		return "refused"
	}
	return "done"
}

// hog uses one resource as much as it can:
//
//	memory MB                  touches it
//	processes                  starts processes until it may not, prints how many
//	cpu SECONDS THREADS
//	write|read|mixed|buffered|overwrite PATH SECONDS   prints bytes moved and the time
func hog(args []string) int {
	number := func(i int) int { n, _ := strconv.Atoi(args[i]); return n }
	switch args[0] {
	case "memory":
		var keep [][]byte
		for range number(1) {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			keep = append(keep, b)
		}
		fmt.Println(len(keep))
	case "processes":
		n := 0
		for ; n < 100_000; n++ {
			pid, _, errno := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
			if errno != 0 {
				break
			}
			for pid == 0 { // the child, which has one thread and no runtime
				_, _, _ = unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
			}
		}
		fmt.Println(n)
	case "cpu":
		end := time.Now().Add(time.Duration(number(1)) * time.Second)
		for range number(2) - 1 {
			go func() {
				for time.Now().Before(end) {
				}
			}()
		}
		for time.Now().Before(end) {
		}
	default:
		kind := args[0]
		if second := secondHog[kind]; second != "" { // two processes: goroutines of one would wait for each other on one CPU
			if kind == "mixed" {
				kind = "read"
			}
			writer := exec.Command("/proc/self/exe", hogMarker, second, args[1]+"2", args[2])
			writer.Stdout, writer.Stderr = os.Stdout, os.Stderr
			if err := writer.Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			defer writer.Wait()
		}
		if err := hogDisk(kind, args[1], time.Duration(number(2))*time.Second); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

// secondHog is what a second process does concurrently with a second file. One that
// overwrites has gaps in which it fills the page cache again; two keep the disk
// busy.
var secondHog = map[string]string{"mixed": "write", "overwrite": "overwrite-too"}

const hogBlock = 256 << 10

func hogDisk(kind, path string, duration time.Duration) error {
	flags := os.O_RDWR | os.O_CREATE
	over := kind == "overwrite" || kind == "overwrite-too"
	if kind != "buffered" && !over {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := aligned(hogBlock)
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	start := time.Now()
	var moved int64
	for at := int64(0); time.Since(start) < duration; at += hogBlock {
		if size > 0 {
			at %= size
		}
		if kind == "read" {
			n, err := f.ReadAt(buf, at)
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			moved += int64(n)
		}
		if kind != "read" {
			n, err := f.WriteAt(buf, at)
			if err != nil {
				return err
			}
			moved += int64(n)
		}
		// The kernel charges a file's dirty pages to the first writer, so this writer
		// must sync by itself.
		if over && moved%(8<<20) == 0 {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	fmt.Println(moved, time.Since(start).Seconds())
	return nil
}

// aligned returns a buffer suitable for O_DIRECT.
func aligned(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return b
}

// count prints numbered lines forever; with a listening MPTCP socket it cannot be
// dumped.
func count(socket bool) {
	if socket {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer l.Close()
	}
	// As GNU sort has: a large deleted file that is open, here also locked.
	f, err := os.CreateTemp("/tmp", "deleted-")
	if err == nil {
		err = errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), f.Truncate(2<<20), os.Remove(f.Name()))
	}
	if err == nil {
		_, err = f.WriteAt(make([]byte, 2<<20), 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer f.Close()
	for i := 0; ; i++ {
		fmt.Print(countLine(i))
		time.Sleep(20 * time.Millisecond)
	}
}

func countLine(n int) string { return fmt.Sprintf("line %06d\n", n) }

// deviceOf returns the number of a device.
func deviceOf(st os.FileInfo) string {
	n := st.Sys().(*syscall.Stat_t).Rdev
	return fmt.Sprintf("%d:%d", unix.Major(n), unix.Minor(n))
}

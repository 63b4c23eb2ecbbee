package reuse

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/runtime/runtimetest"
)

const (
	connectMarker = "drover-reuse-connects"
	leaveMarker   = "drover-reuse-leaves"
	lookMarker    = "drover-reuse-looks"
)

// leave leaves something behind and exits with 0.
func leave(args []string) int {
	if err := leaves[args[0]](); err != nil {
		fmt.Println(args[0], err)
		return 1
	}
	return 0
}

var leaves = map[string]func() error{
	"files": func() error {
		for _, dir := range []string{"/task", "/tmp", "/dev/shm"} {
			if err := os.WriteFile(dir+"/left", []byte("x"), 0o666); err != nil {
				return err
			}
			if err := os.Chmod(dir, 0o777); err != nil && dir != "/dev/shm" {
				return err
			}
		}
		return nil
	},
	"processes": func() error { // one that ignores signals, in a session of its own, with an orphan
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		cmd := exec.Command("/bin/prog", runtimetest.Marker, "child")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	},
	"sockets": func() error { // a process that holds names in the network namespace
		l, err := net.Listen("unix", "@left")
		if err != nil {
			return err
		}
		tcp, err := net.Listen("tcp", "127.0.0.1:7777")
		if err != nil {
			return err
		}
		a, err := l.(*net.UnixListener).File()
		if err != nil {
			return err
		}
		b, err := tcp.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		cmd := exec.Command("/bin/prog", runtimetest.Marker, "sleep")
		cmd.ExtraFiles = []*os.File{a, b}
		cmd.Env = append(os.Environ(), "LEFT=1")
		return cmd.Start()
	},
	"closed-connections": func() error { // one that waits for its last packets has the address for a minute
		l, err := net.Listen("tcp", "127.0.0.1:7777")
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		s, err := l.Accept()
		if err != nil {
			return err
		}
		return errors.Join(s.Close(), c.Close())
	},
	"signals": func() error { // to process 1, all that there are
		for sig := syscall.Signal(1); sig <= 64; sig++ {
			if sig == 32 || sig == 33 {
				continue // of the C library
			}
			if err := syscall.Kill(1, sig); err != nil {
				return fmt.Errorf("signal %d: %w", sig, err)
			}
		}
		return nil
	},
	"queued-signals": func() error { // one that process 1 takes for a fault of its own
		info := [32]int32{int32(unix.SIGSEGV), 0, -1} // siginfo_t with SI_QUEUE
		if _, _, e := unix.Syscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(unix.SIGSEGV), uintptr(unsafe.Pointer(&info))); e != 0 {
			return e
		}
		<-time.After(verbLimit) // it is killed with process 1
		return errors.New("process 1 goes on")
	},
	"mounts": func() error {
		if err := unix.Mount("x", "/tmp", "tmpfs", 0, ""); err == nil {
			return fmt.Errorf("a task can mount")
		}
		if err := unix.Unmount("/task", unix.MNT_DETACH); err == nil {
			return fmt.Errorf("a task can unmount")
		}
		if err := unix.Unshare(unix.CLONE_NEWUSER); err == nil {
			return fmt.Errorf("a task can make a user namespace")
		}
		return nil
	},
	"descriptors": func() error { // of process 1: they are the node's
		for _, path := range []string{"/proc/1/mem", "/proc/1/fd/3", "/proc/1/environ", "/proc/1/root/task"} {
			if f, err := os.Open(path); err == nil {
				f.Close()
				return fmt.Errorf("%s can be opened", path)
			}
		}
		if err := unix.PtraceAttach(1); err == nil {
			return fmt.Errorf("process 1 can be traced")
		}
		var buf [8]byte
		local := []unix.Iovec{{Base: &buf[0], Len: 8}}
		if _, err := unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0); err == nil {
			return fmt.Errorf("the memory of process 1 can be read")
		}
		return nil
	},
	"shm": func() error {
		_, err := unix.SysvShmGet(7, 4096, unix.IPC_CREAT|0o666)
		return err
	},
	"semaphore": func() error {
		if _, _, e := unix.Syscall(unix.SYS_SEMGET, 7, 1, unix.IPC_CREAT|0o666); e != 0 {
			return e
		}
		return nil
	},
	"queue": func() error {
		name := [...]byte{'l', 'e', 'f', 't', 0}
		if _, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o666, 0, 0, 0); e != 0 {
			return e
		}
		return nil
	},
	"limits": func() error {
		return unix.Prlimit(1, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 16, Max: 16}, nil)
	},
	"processors": func() error {
		var set unix.CPUSet
		set.Set(0)
		return unix.SchedSetaffinity(1, &set)
	},
	"priority": func() error { return unix.Setpriority(unix.PRIO_PROCESS, 1, 19) },
}

// look writes what a new task sees.
func look() int {
	for _, dir := range []string{"/task", "/tmp", "/dev/shm"} {
		all, err := os.ReadDir(dir)
		st, serr := os.Stat(dir)
		if err != nil || serr != nil {
			fmt.Println(dir, err, serr)
			continue
		}
		fmt.Println(dir, len(all), "files", st.Mode().Perm())
	}
	pids := 0
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		if e.Name()[0] >= '0' && e.Name()[0] <= '9' {
			pids++
		}
	}
	fmt.Println("processes", pids)
	_, err := net.Dial("unix", "@left")
	fmt.Println("socket", err != nil)
	fmt.Println("address is free", bindRaw(7777))
	l, err := net.Listen("tcp", "127.0.0.1:7777")
	fmt.Println("port is free", err == nil)
	if err == nil {
		l.Close()
	}
	for _, name := range []string{"msg", "sem", "shm"} {
		b, _ := os.ReadFile("/proc/sysvipc/" + name)
		fmt.Println(name, strings.Count(string(b), "\n"))
	}
	queues, err := os.ReadDir("/dev/mqueue")
	fmt.Println("queues", len(queues), err)
	env := os.Environ()
	slices.Sort(env)
	fmt.Println("environment", env)
	var nofile unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile)
	fmt.Println("open files", nofile.Cur > 1000 && nofile.Cur == nofile.Max)
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	var machine int
	b, _ := os.ReadFile("/proc/stat")
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "cpu") && line[3] != ' ' {
			machine++
		}
	}
	prio, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	fmt.Println("all processors", set.Count() == machine, "nice", 20-prio)
	ignored := ""
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		for _, name := range []string{"SigIgn", "SigBlk", "CapEff", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp:", "Uid", "Gid", "Groups"} {
			if strings.HasPrefix(line, name) {
				ignored += strings.Join(strings.Fields(line), " ") + "; "
			}
		}
	}
	fmt.Println(ignored)
	host, _ := os.Hostname()
	dir, _ := os.Getwd()
	fmt.Println("host", host, "folder", dir)
	fds, _ := os.ReadDir("/proc/self/fd")
	var open []string
	for _, f := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && !strings.HasPrefix(to, "anon_inode") && !strings.HasPrefix(to, "/proc") {
			open = append(open, f.Name())
		}
	}
	fmt.Println("files", open)
	for _, path := range []string{initTarget, socketTarget} {
		st, err := os.Stat(path)
		fmt.Println(path, err == nil && (st.IsDir() && countDir(path) == 0 || st.Size() == 0))
	}
	f, err := os.OpenFile("/dev/stdout", os.O_WRONLY, 0)
	fmt.Println("/dev/stdout opens", err == nil)
	if err == nil {
		f.Close()
	}
	fmt.Println("end", time.Now().Year() > 2000)
	return 0
}

// bindRaw binds a port of the loopback interface without Go's SO_REUSEADDR.
func bindRaw(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

func countDir(path string) int {
	all, _ := os.ReadDir(path)
	return len(all)
}

// wantLook is what look writes in a container that nothing has used before.
func wantLook(host string) string {
	return strings.Join([]string{
		"/task 0 files -rwx------", "/tmp 0 files -rwx------", "/dev/shm 0 files -rwxrwxrwx",
		"processes 2", "socket true", "address is free <nil>", "port is free true", "msg 1", "sem 1", "shm 1", "queues 0 <nil>",
		"environment [FROM_IMAGE=yes HOME=/ PATH=/bin]", "open files true", "all processors true nice 0",
		"Uid: 1000 1000 1000 1000; Gid: 1000 1000 1000 1000; Groups: 1000; SigBlk: 0000000000000000; SigIgn: 0000000000000000; CapInh: 0000000000000000; CapEff: 0000000000000000; CapBnd: 0000000000000000; CapAmb: 0000000000000000; NoNewPrivs: 1; Seccomp: 2; ",
		"host " + host + " folder /task", "files [0 1 2]", initTarget + " true", socketTarget + " true", "/dev/stdout opens true", "end true", "",
	}, "\n")
}

package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheProcessorsRate(t *testing.T) {
	const server = "processor\t: 0\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2596.128\n\nprocessor\t: 1\ncpu MHz\t\t: 1.0\n\n"
	const laptop = "processor\t: 0\nmodel name\t: Intel(R) Core(TM) i7 CPU @ 1.80GHz\ncpu MHz\t\t: 799.9\n\n"
	tests := map[string]struct {
		info    string
		scales  bool
		want    int
		wantErr bool
	}{
		"the first processor's, in whole MHz":         {server, false, 2596000, false},
		"the model's if the clock scales":             {laptop, true, 1800000, false},
		"the current one if nothing else is known":    {server, true, 2596000, false},
		"the current one if the clock does not scale": {laptop, false, 800000, false},
		"none":         {"processor : 0\n\n", false, 0, true},
		"not a number": {"cpu MHz : fast\n\n", false, 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := cpuKHz(tt.info, tt.scales)
			if got != tt.want || (err != nil) != tt.wantErr {
				t.Errorf("got %d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

// TestAResumedMachineIsTheSavedOne compares command lines: QEMU loads a RAM image only into an
// equal machine.
func TestAResumedMachineIsTheSavedOne(t *testing.T) {
	saved := Machine{Name: "a", Dir: "/d", Kernel: "/k", Initrd: "/i", Options: "x=1", MemoryMB: 512, CPUs: 2, Disks: []Disk{{Path: "/r"}}}
	resumed := saved
	resumed.Tap, resumed.Incoming = "tap1", "/it's ram"
	resumed.Disks = []Disk{{Path: "/r", Ephemeral: true}}
	a, b := devices(saved.args("o")), devices(resumed.args("o"))
	if a != b {
		t.Errorf("saved:\n%s\nresumed:\n%s", a, b)
	}
	all := strings.Join(resumed.args("o"), " ")
	for _, want := range []string{`-incoming exec:cat '/it'\''s ram'`, "snapshot=on", "ifname=tap1", "-append o x=1", "-smp 2"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if strings.Contains(strings.Join(saved.args("o"), " "), "snapshot=on") {
		t.Error("writes of the saved machine would be lost")
	}
}

// TestAMachineEndsAtAResetThatNobodyAskedFor, also after one that was asked for.
func TestAMachineEndsAtAResetThatNobodyAskedFor(t *testing.T) {
	var asked []string
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := OpenMonitor(ctx, fakeMonitor(t, nil, func(command string) { asked = append(asked, command) }))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(m.Reset(), m.EndReset()); err != nil {
		t.Fatal(err)
	}
	want := `{"execute":"qmp_capabilities"} {"arguments":{"reboot":"reset"},"execute":"set-action"} {"execute":"system_reset"} {"arguments":{"reboot":"shutdown"},"execute":"set-action"}`
	if got := strings.Join(asked, " "); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

// devices returns the options that the guest can see.
func devices(args []string) string {
	var seen []string
	for i := 0; i+1 < len(args); i++ {
		switch args[i] {
		case "-machine", "-cpu", "-accel", "-smp", "-m", "-kernel", "-initrd", "-append", "-device":
			seen = append(seen, args[i]+" "+args[i+1])
		}
	}
	return strings.Join(seen, "\n")
}

// fakeMonitor answers commands like QEMU: greeting, events, errors.
func fakeMonitor(t *testing.T, answers map[string][]string, asked func(command string)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "m")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintln(c, `{"QMP": {"version": {}}}`)
		in := bufio.NewReader(c)
		for {
			var b strings.Builder // commands have no newline
			for depth := 0; ; {
				x, err := in.ReadByte()
				if err != nil {
					return
				}
				b.WriteByte(x)
				if x == '{' {
					depth++
				} else if x == '}' {
					depth--
				}
				if depth == 0 {
					break
				}
			}
			asked(b.String())
			answer := `{"return": {}}`
			for command, list := range answers {
				if strings.Contains(b.String(), `"`+command+`"`) {
					answer, answers[command] = list[0], list[min(1, len(list)-1):]
				}
			}
			fmt.Fprintln(c, `{"event": "NEWS"}`)
			fmt.Fprintln(c, answer)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return socket
}

func TestSaving(t *testing.T) {
	tests := map[string]struct {
		answers map[string][]string
		want    string
	}{
		"waits until it is complete": {map[string][]string{"query-migrate": {
			`{"return": {"status": "active"}}`, `{"return": {"status": "active"}}`, `{"return": {"status": "completed"}}`}}, ""},
		"reports a failure":               {map[string][]string{"query-migrate": {`{"return": {"status": "failed"}}`}}, "failed"},
		"passes on the monitor's reasons": {map[string][]string{"migrate": {`{"error": {"desc": "disk full"}}`}}, "disk full"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			m, err := OpenMonitor(ctx, fakeMonitor(t, tt.answers, func(string) {}))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			err = m.Save(ctx, "/file")
			if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

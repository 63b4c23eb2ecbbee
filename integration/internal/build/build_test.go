package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBooksAreWholeLinesOfExactlyTheSize(t *testing.T) {
	line := strings.Repeat("word ", 20) + "\n" // 101 bytes, so no cut falls on a line end by itself
	text := []byte(strings.Repeat(line, 20<<20/len(line)+1))
	parts, err := splitBooks(text, 19)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var joined bytes.Buffer
	for _, p := range parts {
		sizes = append(sizes, len(p)>>20)
		if len(p)%(1<<20) != 0 || p[len(p)-1] != '\n' {
			t.Errorf("a part of %d bytes ends with %q", len(p), p[len(p)-1])
		}
		joined.Write(bytes.TrimRight(p, "\n"))
		joined.WriteByte('\n')
	}
	if len(sizes) != 3 || sizes[0] != 8 || sizes[1] != 8 || sizes[2] != 3 {
		t.Errorf("parts of %v MiB", sizes)
	}
	if !bytes.HasPrefix(text, joined.Bytes()) {
		t.Error("the joined parts are not the beginning of the text")
	}
}

func TestImpossibleBooks(t *testing.T) {
	tests := map[string]struct {
		text string
		mb   int
	}{
		"more than available":      {strings.Repeat("x\n", 1<<20), 3},
		"none":                     {strings.Repeat("x\n", 1<<20), 0},
		"a line longer than a MiB": {strings.Repeat("x", 3<<20), 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := splitBooks([]byte(tt.text), tt.mb); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestAptSourcesComeFromTheHost(t *testing.T) {
	tests := map[string]struct {
		targets string
		want    []string
	}{
		"Debian 12 with security": {
			"http://m/debian/ bookworm main\nhttp://m/debian/ bookworm-updates main\nhttp://s/security/ bookworm-security main\n",
			[]string{"http://m/debian/ trixie main", "http://s/security/ trixie-security main"}},
		"other archives as well": {
			"https://x/apt/ nodistro main\nhttps://y/ stable contrib\nhttp://m/debian/ trixie main\n",
			[]string{"http://m/debian/ trixie main"}},
		"no Debian": {"http://u/ubuntu/ noble main\n", nil},
		"nothing":   {"", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := sourcesFor(tt.targets, "trixie")
			if (err != nil) != (tt.want == nil) || len(got) != len(tt.want) {
				t.Fatalf("got %q, %v; want %q", got, err, tt.want)
			}
			for i, w := range tt.want {
				if !strings.HasPrefix(got[i], "deb [signed-by=") || !strings.HasSuffix(got[i], "] "+w) {
					t.Errorf("got %q, want %q", got[i], w)
				}
			}
		})
	}
}

func TestPackagesAreInEveryDebian(t *testing.T) {
	versioned := regexp.MustCompile(`-[0-9]+(\.[0-9]+)*(-|$)`)
	for _, d := range Deps() {
		if versioned.MatchString(d.Package) {
			t.Errorf("package %s has a version in its name: another Debian has no such package", d.Package)
		}
	}
}

// TestTutorialNeedsWhatItSays checks each program of the tutorial: it is part of every Debian,
// built before, installed by `make deps`, or named in the introduction.
func TestTutorialNeedsWhatItSays(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/tutorial/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	introduction, _, _ := strings.Cut(string(doc), "\n## ")
	known := map[string]bool{"drover": true, "testbed": true, "go": strings.Contains(introduction, "Go 1.")}
	for _, name := range strings.Fields("cat cd cp done export for grep head kill ls mkdir sed seq sleep sort timeout wait") {
		known[name] = true // built into the shell, or in packages that Debian calls essential
	}
	for _, d := range Deps() {
		known[filepath.Base(d.probe)] = true
	}
	used := programsOf(string(doc))
	if len(used) < 15 {
		t.Errorf("the tutorial uses only %q", used)
	}
	for _, name := range used {
		if !known[name] && !strings.Contains(introduction, "`"+name+"`") {
			t.Errorf("the tutorial runs %s, which neither its introduction nor Deps names", name)
		}
	}
}

var (
	codeBlockRE = regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$")
	heredocRE   = regexp.MustCompile(`(?ms)(<<'END'\n).*?^END$`)
	keywordRE   = regexp.MustCompile(`\b(?:(?:do|until|exec)\b|sh -c ['"])`) // a command follows
	programRE   = regexp.MustCompile(`(?m)(?:^|[|;&]|\$\() *([a-z][a-z0-9_-]*)(?:[ ;)]|$)`)
)

// programsOf returns the words of a document's shell blocks at which a command begins.
func programsOf(doc string) []string {
	var names []string
	for _, block := range codeBlockRE.FindAllStringSubmatch(doc, -1) {
		text := strings.ReplaceAll(heredocRE.ReplaceAllString(block[1], "$1"), "\\\n", " ")
		for _, m := range programRE.FindAllStringSubmatch(keywordRE.ReplaceAllString(text, ";"), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestScanConsole(t *testing.T) {
	tests := map[string]struct {
		console string
		seen    bool
		why     string
	}{
		"not yet":                        {"booting\n", false, ""},
		"seen":                           {"noise\r\nTESTBED-UP\r\n", true, ""},
		"another word":                   {"TESTBED-READY\n", false, ""},
		"the word as part of another":    {"TESTBED-UPSET\n", false, ""},
		"a failure with its reason":      {"TESTBED-FAIL no disk\n", false, "no disk"},
		"a failure behind other letters": {"[1.0] xTESTBED-FAIL no disk\n", false, "no disk"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if seen, why := scanConsole(tt.console, "UP"); seen != tt.seen || strings.TrimSpace(why) != tt.why {
				t.Errorf("got %v, %q", seen, why)
			}
		})
	}
}

func TestAwaitConsoleEndsWithTheMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console")
	if err := os.WriteFile(path, []byte("last words\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	close(ended)
	err := AwaitConsole(context.Background(), path, "UP", time.Minute, ended)
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("error %v", err)
	}
	err = AwaitConsole(context.Background(), path, "UP", 30*time.Millisecond, nil)
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("error %v", err)
	}
}

// TestImageArchiveIsConsistent follows every reference of an archive as an engine would.
func TestImageArchiveIsConsistent(t *testing.T) {
	l := newLayer()
	l.folder("bin", 0o755)
	l.text("etc/motd", "hello\n")
	l.link("bin/sh", "busybox")
	path := filepath.Join(t.TempDir(), "i.tar")
	if err := writeImage(path, "localhost/x:tag", l); err != nil {
		t.Fatal(err)
	}
	files := readTar(t, path)
	blob := func(d descriptor) []byte {
		algorithm, digest, _ := strings.Cut(d.Digest, ":")
		b, ok := files["blobs/"+algorithm+"/"+digest]
		sum := sha256.Sum256(b)
		if !ok || len(b) != d.Size || hex.EncodeToString(sum[:]) != digest {
			t.Fatalf("blob %s: there %v, %d bytes", d.Digest, ok, len(b))
		}
		return b
	}
	var index struct{ Manifests []descriptor }
	unmarshal(t, files["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/x:tag" {
		t.Fatalf("index %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	unmarshal(t, blob(index.Manifests[0]), &manifest)
	var config struct {
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	unmarshal(t, blob(manifest.Config), &config)
	if len(manifest.Layers) != 1 || config.Rootfs.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("layers %+v, diff ids %v", manifest.Layers, config.Rootfs.DiffIDs)
	}
	layerPath := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(layerPath, blob(manifest.Layers[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := readTar(t, layerPath); string(got["etc/motd"]) != "hello\n" {
		t.Errorf("layer contains %q", got)
	}
}

func unmarshal(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
}

func readTar(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryDependencyHasReasonAndProbe(t *testing.T) {
	for _, d := range Deps() {
		if d.Package == "" || d.probe == "" || d.Why == "" || strings.HasPrefix(d.Group.String(), "Group(") {
			t.Errorf("%+v", d)
		}
	}
	if (Dep{probe: "sh"}).Present() != true || (Dep{probe: "/bin/sh"}).Present() != true {
		t.Error("an existing shell is not found")
	}
	if (Dep{probe: "no-such-program"}).Present() || (Dep{probe: "/no/such/file"}).Present() {
		t.Error("a missing program is found")
	}
}

func TestTailBufferKeepsEnd(t *testing.T) {
	var o tailBuffer
	for range 30 {
		o.Write(bytes.Repeat([]byte("x\n"), 1<<19))
	}
	o.Write([]byte("one\ntwo\n"))
	if len(o.b) > 3*tailLimit {
		t.Errorf("%d bytes remain", len(o.b))
	}
	if got := o.lines(2); got != "one\ntwo" {
		t.Errorf("last lines %q", got)
	}
}

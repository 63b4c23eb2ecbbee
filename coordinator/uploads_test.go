package coordinator

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// A share is not left by sizes that nobody has verified: a negative one of a file that was here
// already gave room for the whole store, one that wraps around for one more file.
func TestSharesOfUploadsTakeNoStrangeSizes(t *testing.T) {
	f := facts.New()
	l := &uploadLedger{view: func(fn func(*facts.Facts)) { fn(f) }, share: 100 << 10, sent: map[string]*sender{}}
	user := identity{kind: kindUser, name: "user/u"}
	claim := func(digest string, size int64) error {
		_, err := l.claim(user, digest, size)
		return err
	}
	if err := claim("a", math.MinInt64); !errors.Is(err, fault.Invalid) {
		t.Errorf("a negative size: %v", err)
	}
	if err := claim("b", 60<<10); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{40<<10 + 1, math.MaxInt64, math.MaxInt64 - 60<<10 + 1} {
		if err := claim("c", size); !errors.Is(err, fault.Exhausted) {
			t.Errorf("%d bytes beside 60 of 100 KiB: %v", size, err)
		}
	}
	if err := claim("d", 40<<10); err != nil {
		t.Error(err)
	}
}

// Uploads of one file that run at once count once, by the largest size that one of them announced, until all have ended;
// then by the size of what was stored, whichever of them stored it.
func TestUploadsOfOneFileAtOnceCount(t *testing.T) {
	type ledger struct {
		claim func(digest string, size int64) func(bool)
		full  func(digest string, size int64)
	}
	for name, try := range map[string]func(ledger){
		"the first fails, the second is stored": func(l ledger) {
			first, second := l.claim("d", 1), l.claim("d", 60<<10)
			first(false)
			second(true)
			l.full("e", 60<<10)
			l.claim("e", 40<<10)
		},
		"the first is stored, the second fails": func(l ledger) {
			first, second := l.claim("d", 60<<10), l.claim("d", 90<<10)
			first(true)
			l.full("e", 20<<10)
			second(false)
			l.full("e", 60<<10)
			l.claim("e", 40<<10)
		},
		"both fail": func(l ledger) {
			first, second := l.claim("d", 60<<10), l.claim("d", 1)
			second(false)
			l.full("e", 60<<10)
			first(false)
			l.claim("e", 100<<10)
		},
		"one that was stored is sent again in vain": func(l ledger) {
			l.claim("d", 60<<10)(true)
			l.claim("d", 60<<10)(false)
			l.full("e", 60<<10)
		},
		"the second announces more than is left": func(l ledger) {
			l.claim("d", 1)
			l.claim("e", 60<<10)
			l.full("d", 60<<10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts.New()
			blob := &droverv1.Entry{Version: facts.EntryVersion, Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: "d", Size: 60 << 10}}}
			if res := f.Apply(1, blob); res.Err != nil || f.Blob("d") == nil { // no job references it
				t.Fatal(res.Err)
			}
			l := &uploadLedger{view: func(fn func(*facts.Facts)) { fn(f) }, share: 100 << 10, sent: map[string]*sender{}}
			user := identity{kind: kindUser, name: "user/u"}
			try(ledger{
				claim: func(digest string, size int64) func(bool) {
					t.Helper()
					done, err := l.claim(user, digest, size)
					if err != nil {
						t.Fatal(err)
					}
					return done
				},
				full: func(digest string, size int64) {
					t.Helper()
					if _, err := l.claim(user, digest, size); !errors.Is(err, fault.Exhausted) {
						t.Errorf("%d bytes of %s: %v", size, digest, err)
					}
				},
			})
		})
	}
}

// A file counts at least 4 KiB, so a share bounds the files too; and all files of a user are looked through after as many
// more claims as were left the last time, not at each.
func TestManySmallUploadsStayCheapAndBounded(t *testing.T) {
	f, looks := facts.New(), 0
	const most = 1000
	l := &uploadLedger{view: func(fn func(*facts.Facts)) { looks++; fn(f) }, share: most * minUploadBytes, sent: map[string]*sender{}}
	user := identity{kind: kindUser, name: "user/u"}
	for i := range most {
		if _, err := l.claim(user, fmt.Sprint(i), 1); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
	if looks > 15 {
		t.Errorf("%d files were looked through %d times", most, looks)
	}
	if _, err := l.claim(user, "more", 1); !errors.Is(err, fault.Exhausted) {
		t.Errorf("a file more than the share: %v", err)
	}
	// What was stored and collected is no longer counted.
	l = &uploadLedger{view: l.view, share: most * minUploadBytes, sent: map[string]*sender{}}
	for i := range 3 * most {
		done, err := l.claim(user, fmt.Sprint(i), 1)
		if err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
		done(true)
	}
}

// A prefix of folders that the operator allows is not left.
func TestAnAllowedImagePrefixEndsWhereAPartOfTheNameDoes(t *testing.T) {
	for _, c := range []struct {
		name, prefix string
		want         bool
	}{
		{"registry:docker.io/team/tool:1", "registry:docker.io/team", true},
		{"registry:docker.io/team/tool:1", "registry:docker.io/team/", true},
		{"registry:docker.io/team:1", "registry:docker.io/team", true},
		{"registry:docker.io/team@sha256:00", "registry:docker.io/team", true},
		{"registry:docker.io/team", "registry:docker.io/team", true},
		{"registry:docker.io/teammate/tool:1", "registry:docker.io/team", false},
		{"registry:docker.io.example/team", "registry:docker.io", false},
		{"rootfs:/srv/images-of-others/x", "rootfs:/srv/images", false},
		{"rootfs:/srv/images/x", "rootfs:/srv/images", true},
		{"rootfs:/srv/images/x", "rootfs:", true},
		{"rootfs:/srv/images/x", "", false},
	} {
		if got := hasImagePrefix(c.name, c.prefix); got != c.want {
			t.Errorf("%s with prefix %q: %v, want %v", c.name, c.prefix, got, c.want)
		}
	}
}

func TestImagesOfHostFoldersNeedTheOperator(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.AllowImages = []string{"rootfs:/srv/images/"} })
	for source, want := range map[string]error{
		"/srv/images/debian":     nil,
		"/srv/images/../../":     fault.Invalid,
		"/srv/images/x/../../..": fault.Invalid,
		"/srv/other":             fault.Denied,
	} {
		j := groupJob("job", 1)
		j.Image = &jobspec.Image{Kind: jobspec.ImageRootfs, Source: source}
		if _, err := b.trySubmit(j, ""); !errors.Is(wire.FromError(err), want) {
			t.Errorf("%s: %v, want %v", source, err, want)
		}
	}
}

// upload stores a file of n bytes and returns its digest.
func (b *testCluster) upload(n int) string {
	b.t.Helper()
	data := bytes.Repeat([]byte{'x'}, n)
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	st := b.client.PutBlob(b.ctx)
	if err := st.Send(&droverv1.PutBlobRequest{Digest: digest, Size: int64(n), Data: data}); err != nil {
		b.t.Fatal(err)
	}
	if _, err := st.CloseAndReceive(); err != nil {
		b.t.Fatal(err)
	}
	return digest
}

// The size of an uploaded file is that of the store, whatever the submitter says of it: nodes charge a copy to the
// task, and reserve its disk space, by its size.
func TestSizesOfFilesAreThoseOfTheStore(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 1, "n1")
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	const size = 3 << 20
	large, small := b.upload(size), b.upload(7)
	files := func(digest string, names ...string) (out []jobspec.File) {
		for _, name := range names {
			out = append(out, jobspec.File{Name: name, Source: name, Digest: digest, Size: 1})
		}
		return out
	}
	j := groupJob("sizes", 1)
	j.Image = &jobspec.Image{Kind: jobspec.ImageOCIArchive, Source: "i.tar", Digest: large}
	j.Stages[0].Files = append(files(large, "large"), files(small, "small")...)
	id, err := b.trySubmit(j, "key")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.trySubmit(j, "key"); err != nil || again != id {
		t.Errorf("submitted again: job %d, %v; want %d", again, err, id)
	}
	b.waitUntil("the task is on the node", func() bool { return len(n.Wanted()) == 1 })
	spec := n.Wanted()[0].GetSpec()
	if f := spec.GetFiles(); len(f) != 2 || f[0].GetSize() != size || f[1].GetSize() != 7 || spec.GetImage().GetSize() != size {
		t.Errorf("the node gets files %v and image %v", f, spec.GetImage())
	}

	for what, c := range map[string]struct {
		change    func(*jobspec.Job)
		run, plan string // what the refusal says; "" for none
	}{
		"a file without a digest": {func(j *jobspec.Job) { j.Stages[0].Files = files("", "a") },
			`file "a" of stage "map" has no digest: upload it first`, ""},
		"an archive without a digest": {func(j *jobspec.Job) { j.Image = &jobspec.Image{Kind: jobspec.ImageOCIArchive, Source: "i.tar"} },
			`image "i.tar" has no digest: upload it first`, ""},
		"files that fill the disk": {func(j *jobspec.Job) { j.Stages[0].Disk, j.Stages[0].Files = 6<<20, files(large, "a", "b") }, "", ""},
		"more files than the disk takes": {func(j *jobspec.Job) { j.Stages[0].Disk, j.Stages[0].Files = 5<<20, files(large, "a", "b") },
			`the files of stage "map" have 6MiB together, more than its disk quota: raise disk, which is "5MiB"`, `the files of stage "map" have 6MiB together`},
		"more with those of the combiner": {func(j *jobspec.Job) {
			j.Stages[0].Disk, j.Stages[0].Files, j.Stages[1].Files, j.Stages[1].Combiner = 4<<20, files(large, "a"), files(large, "b"), true
		}, `the files of stage "map" have 6MiB together`, `the files of stage "map" have 6MiB together`},
		"a file of both stages": {func(j *jobspec.Job) {
			j.Stages[0].Disk, j.Stages[0].Files, j.Stages[1].Files, j.Stages[1].Combiner = 4<<20, files(large, "a"), files(large, "a"), true
		}, "", ""},
		"those of a reduce stage without a combiner": {func(j *jobspec.Job) {
			j.Stages[0].Disk, j.Stages[0].Files, j.Stages[1].Files = 4<<20, files(large, "a"), files(large, "b")
		}, "", ""},
	} {
		j := mapReduceJob(strings.ReplaceAll(what, " ", "-"), 1)
		j.Output.Path += what
		c.change(j)
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		_, planErr := b.client.PlanJob(b.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)}))
		_, runErr := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text)}))
		for _, got := range []struct {
			err  error
			want string
		}{{wire.FromError(runErr), c.run}, {wire.FromError(planErr), c.plan}} {
			if (got.err == nil) != (got.want == "") || got.err != nil && (!errors.Is(got.err, fault.Invalid) || !strings.Contains(got.err.Error(), got.want)) {
				t.Errorf("%s: %v, want %q", what, got.err, got.want)
			}
		}
	}
}

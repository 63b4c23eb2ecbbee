package coordinator

import (
	"errors"
	"fmt"
	"math"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
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

package hcl

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/keyorder"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/jobspec"
)

// jobWriter writes a job as an author might: on one line or many, with comments, in any unit that
// holds the value exactly, with line ends of either kind.
type jobWriter struct {
	*rand.Rand
	text strings.Builder
	end  string // of a line
}

func (w *jobWriter) pick(texts ...string) string { return texts[w.IntN(len(texts))] }

// gap writes what may stand between two items of a body.
func (w *jobWriter) gap() {
	w.text.WriteString(w.pick(" ", "  ", w.end, w.end+"\t", " # c = { \" "+w.end, " // }"+w.end, " /* = */ ", w.end+"/* {"+w.end+"*/"))
}

func (w *jobWriter) attr(name, value string) {
	w.text.WriteString(name + w.pick("=", " = ", " /**/ = ") + value)
	w.gap()
}

func (w *jobWriter) block(header string, body func()) {
	w.text.WriteString(header + w.pick("{", " {"))
	w.gap()
	body()
	w.text.WriteString("}")
	w.gap()
}

// quote quotes text for HCL, in which "${" and "%{" begin a template.
func quote(s string) string {
	s = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s)
	return `"` + strings.NewReplacer("${", "$${", "%{", "%%{").Replace(s) + `"`
}

func (w *jobWriter) list(of []string) string {
	quoted := make([]string, len(of))
	for i, s := range of {
		quoted[i] = quote(s)
	}
	return "[" + w.pick("", " ", w.end) + strings.Join(quoted, w.pick(",", ", ", ","+w.end)) + w.pick("", ",") + "]"
}

func (w *jobWriter) vars(of map[string]string) string {
	var items []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		items = append(items, w.pick(k, quote(k))+w.pick("=", " = ")+quote(of[k]))
	}
	return "{" + w.pick("", " ", w.end) + strings.Join(items, w.pick(", ", w.end)) + w.pick(" ", w.end) + "}"
}

func (w *jobWriter) size(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}} {
		if n%u.bytes == 0 && w.IntN(2) == 0 {
			return quote(fmt.Sprint(n/u.bytes) + w.pick("", " ") + u.name)
		}
	}
	return w.pick(fmt.Sprint(n), quote(fmt.Sprint(n)), quote(fmt.Sprintf("%dB", n)))
}

func (w *jobWriter) cpu(m int64) string {
	cores := strconv.FormatFloat(float64(m)/1000, 'f', -1, 64)
	return w.pick(cores, quote(cores), quote(fmt.Sprintf("%dm", m)), quote(" "+cores))
}

func (w *jobWriter) rate(n int64) string {
	size := w.size(n)
	return quote(strings.Trim(size, `"`) + "/s")
}

func (w *jobWriter) job(j *jobspec.Job) string {
	w.block("job "+quote(j.Name), func() {
		w.attr("tenant", quote(j.Tenant))
		w.attr("priority", quote(string(j.Priority)))
		w.attr("keep_failed", fmt.Sprint(j.KeepFailed))
		if j.Deadline != nil {
			zone := time.FixedZone("", w.IntN(24)*3600-12*3600)
			w.attr("deadline", quote(j.Deadline.In(zone).Format(time.RFC3339Nano)))
			w.attr("on_miss", quote(string(j.OnMiss)))
		}
		if j.RuntimeBound > 0 {
			w.attr("runtime_bound", quote(time.Duration(j.RuntimeBound).String()))
		}
		if j.Project != "" {
			w.attr("project", quote(j.Project))
		}
		if i := j.Image; i != nil {
			text := string(i.Kind) + ":" + i.Source
			if i.Kind == jobspec.ImageRegistry && w.IntN(2) == 0 {
				text = i.Source
			}
			w.attr("image", quote(text))
		}
		w.attr("env", w.vars(j.Env))
		w.attr("meta", w.vars(j.Meta))
		if j.Input != nil {
			w.block("input", func() {
				w.attr("paths", w.list(j.Input.Paths))
				w.attr("recurse", fmt.Sprint(j.Input.Recurse))
				w.attr("combine", w.size(j.Input.CombineBytes))
			})
			w.block("output", func() {
				w.attr("path", quote(j.Output.Path))
				w.attr("replication", fmt.Sprint(j.Output.Replication))
			})
		}
		for i := range j.Stages {
			w.block("stage "+quote(j.Stages[i].Name), func() { w.stage(&j.Stages[i]) })
		}
	})
	return w.text.String()
}

func (w *jobWriter) stage(s *jobspec.Stage) {
	w.attr("kind", quote(string(s.Kind)))
	if len(s.Command) > 0 {
		w.attr("command", w.list(s.Command))
	} else {
		w.attr("builtin", w.list(s.Builtin))
	}
	if s.Tasks > 0 {
		w.attr("tasks", w.pick(fmt.Sprint(s.Tasks), fmt.Sprintf("%d.0", s.Tasks)))
	}
	if s.Kind == jobspec.KindReduce {
		w.attr("combiner", fmt.Sprint(s.Combiner))
	}
	if len(s.After) > 0 {
		w.attr("after", w.list(s.After))
	}
	if s.SlowStart > 0 {
		w.attr("slow_start", fmt.Sprint(s.SlowStart))
	}
	if s.KeyFields > 0 {
		w.attr("key_fields", fmt.Sprint(s.KeyFields))
	}
	if len(s.KeyOrder) > 0 {
		w.attr("key_order", w.list(s.KeyOrder))
	}
	if s.PartitionFields > 0 {
		w.attr("partition_fields", fmt.Sprint(s.PartitionFields))
	}
	if len(s.PartitionKeys) > 0 {
		w.attr("partition_keys", w.list(s.PartitionKeys))
	}
	if s.PartitionFile != "" {
		w.attr("partition_file", quote(s.PartitionFile))
	}
	if s.CompressMapOutput != "" {
		w.attr("compress_map_output", quote(string(s.CompressMapOutput)))
	}
	if s.ContainersUsedAgain != nil {
		w.attr("containers_used_again", fmt.Sprint(*s.ContainersUsedAgain))
	}
	if s.TimeLimit > 0 {
		w.attr("time_limit", quote(time.Duration(s.TimeLimit).String()))
	}
	w.attr("attempts", fmt.Sprint(s.Attempts))
	w.attr("max_parallel", fmt.Sprint(s.MaxParallel))
	w.attr("exclusive", fmt.Sprint(s.Exclusive))
	w.attr("disk", w.size(s.Disk))
	w.block("resources", func() {
		w.attr("cpu", w.cpu(s.Resources.CPU))
		w.attr("memory", w.size(s.Resources.Memory))
		w.attr("io", w.rate(s.Resources.IO))
	})
	for _, f := range s.Files {
		w.block("file "+quote(f.Name), func() {
			w.attr("source", quote(f.Source))
			w.attr("mode", quote(fmt.Sprintf("0%o", f.Mode)))
		})
	}
	for _, x := range s.Secrets {
		w.block("secret "+quote(x.Env), func() { w.attr("ref", quote(x.Ref)) })
	}
}

// texts are arguments that an author may well write, and that look like something else in HCL.
var texts = []string{"", "x", "a b", `"`, `\n`, "tab\there", "line\nline", "${HOME}", "$HOME", "$${x}", "%{if}", "%", "}", "{", "[", "=", "#", "//", "/*", "*/", "é", "tasks = 3", "<<EOT", "'"}

func randomJob(r *rand.Rand) *jobspec.Job {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	words := func(first string) []string {
		out := []string{first}
		for range r.IntN(4) {
			out = append(out, texts[r.IntN(len(texts))])
		}
		return out
	}
	j := &jobspec.Job{Version: jobspec.Version, Name: pick("j", "a.b", "9-x_"), Tenant: pick("default", "t"), Priority: jobspec.Priority(pick("low", "high")), KeepFailed: r.IntN(101)}
	j.Env, j.Meta = map[string]string{"A": texts[r.IntN(len(texts))], "B_1": "x"}, map[string]string{"owner": texts[r.IntN(len(texts))]}
	if r.IntN(2) == 0 {
		at := time.Unix(r.Int64N(1<<33), r.Int64N(1e9)).UTC()
		j.Deadline, j.OnMiss = &at, jobspec.OnMiss(pick("continue", "lower", "stop"))
	}
	if r.IntN(2) == 0 {
		j.RuntimeBound, j.Project = jobspec.Duration(time.Millisecond+time.Duration(r.Int64N(1e15))), "p"
	}
	if r.IntN(2) == 0 {
		j.Image = &jobspec.Image{Kind: jobspec.ImageKind(pick("oci-archive", "registry", "rootfs")), Source: "/a/b:c"}
	}
	kinds := []jobspec.StageKind{jobspec.KindGroup}
	if r.IntN(2) == 0 {
		kinds = slices.Insert(kinds, r.IntN(2), jobspec.KindMap, jobspec.KindReduce)
		j.Input = &jobspec.Input{Paths: []string{"hdfs:///a/{b,c}/*", "file:///x y"}, CombineBytes: r.Int64N(1 << 40), Recurse: r.IntN(2) == 0}
		j.Output = &jobspec.Output{Path: "hdfs://nn:8020/out", Replication: r.IntN(101)}
	}
	for i, kind := range kinds {
		s := jobspec.Stage{Name: fmt.Sprintf("s.%d", i), Kind: kind, Attempts: 1 + r.IntN(100), MaxParallel: r.IntN(5), Exclusive: r.IntN(2) == 0, Disk: 1<<20 + r.Int64N(1<<40)}
		s.Resources = jobspec.Resources{CPU: 10 + r.Int64N(1e6), Memory: 8 << 20 * (1 + r.Int64N(1e6)), IO: 64<<10 + r.Int64N(1e12)}
		if s.Command = words("sh"); kind == jobspec.KindReduce && r.IntN(2) == 0 {
			s.Command, s.Builtin = nil, []string{"sum"}
		}
		if kind != jobspec.KindMap {
			s.Tasks = 1 + r.IntN(jobspec.MaxReduceTasks)
		}
		if kind == jobspec.KindMap {
			s.CompressMapOutput = jobspec.Compression(pick("", "auto", "none", "zstd"))
		}
		if kind == jobspec.KindReduce {
			s.Combiner, s.SlowStart = r.IntN(2) == 0, 0.01+0.99*r.Float64()
			randomKeys(r, &s)
		}
		if i > 0 && r.IntN(2) == 0 {
			s.After = []string{"s.0"}
		}
		if r.IntN(2) == 0 {
			again := r.IntN(2) == 0
			s.ContainersUsedAgain, s.TimeLimit = &again, jobspec.Duration(time.Millisecond+time.Duration(r.Int64N(1e15)))
			s.Files = []jobspec.File{{Name: fmt.Sprintf("a b/é%d", i), Source: pick("../x", `"`), Mode: 1 + r.Uint32N(0o777)}, {Name: "c", Source: "c", Mode: 0o644}}
			s.Secrets = []jobspec.Secret{{Env: "T", Ref: pick("secret:a", "secret:a@7", "file:b")}}
		}
		j.Stages = append(j.Stages, s)
	}
	return j
}

// randomKeys sets what is the key of a line, and which task gets it.
func randomKeys(r *rand.Rand, s *jobspec.Stage) {
	s.KeyFields = r.IntN(4)
	if r.IntN(2) == 0 {
		for range max(s.KeyFields, 1) {
			s.KeyOrder = append(s.KeyOrder, keyorder.Entries()[r.IntN(4)])
		}
	}
	order, _ := keyorder.Parse(s.KeyOrder)
	switch r.IntN(4) {
	case 0:
		s.PartitionFields = 1 + r.IntN(max(s.KeyFields, 1))
	case 1:
		s.PartitionFile = "a b/é"
	case 2:
		for _, text := range slices.SortedFunc(slices.Values(texts), order.Compare) {
			if text != "" && !strings.ContainsAny(text, "\t\n") && r.IntN(2) == 0 {
				s.PartitionKeys = append(s.PartitionKeys, text)
			}
		}
		s.Tasks = len(s.PartitionKeys) + 1
	}
}

// However a job is laid out, it is read as what it says; its canonical JSON is read as the same job; and
// each field that has a line is on one that names it.
func TestAnyLayoutIsReadAsTheSameJob(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 5))
	for range 100 {
		want := randomJob(r)
		w := &jobWriter{Rand: r, end: []string{"\n", "\r\n"}[r.IntN(2)]}
		text := w.job(want)
		got, err := Parse("j.hcl", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got)\n%s\n%s", d, text)
		}
		b, err := jobspec.Encode(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("j.json", b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if d := cmp.Diff(want, again); d != "" {
			t.Fatalf("as JSON (-want +got)\n%s", d)
		}
		lines := strings.Split(text, "\n")
		for path, n := range FieldLines("j.hcl", []byte(text)) {
			field := path[strings.LastIndexByte(path, '.')+1:]
			if i := strings.IndexByte(field, '['); i >= 0 || strings.HasSuffix(path, `"]`) || field == "name" || field == "" {
				continue // a block, or its label
			}
			if n < 1 || n > len(lines) || !strings.Contains(lines[n-1], field) {
				t.Fatalf("%s is said to stand on line %d\n%s", path, n, text)
			}
		}
	}
}

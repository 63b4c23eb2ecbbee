package hcl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/drover-run/drover/jobspec"
)

// Where attributes and blocks belong that stand in the wrong place, or have another
// name elsewhere.
const (
	inResources = `Write it in a block of the stage: resources { cpu = "500m"  memory = "256MiB"  io = "10MiB/s" }.`
	inStage     = `It belongs directly in a stage: stage "name" { … }.`
	inJob       = `It belongs directly in the job, outside of its stages.`
)

var misplaced = map[string]string{
	"cpu": inResources, "memory": inResources, "io": inResources,
	"command": inStage, "builtin": inStage, "tasks": inStage, "kind": inStage, "after": inStage, "attempts": inStage, "time_limit": inStage,
	"max_parallel": inStage, "slow_start": inStage, "exclusive": inStage, "disk": inStage, "combiner": inStage, "combine_command": inStage, "containers_used_again": inStage, "compress_map_output": inStage,
	"key_fields": inStage, "key_order": inStage, "partition_fields": inStage, "partition_keys": inStage, "partition_file": inStage,
	"tenant": inJob, "priority": inJob, "project": inJob, "deadline": inJob, "on_miss": inJob, "runtime_bound": inJob, "image": inJob, "meta": inJob, "keep_failed": inJob, "gather_logs": inJob,
	"args":       `Write the program and its arguments as one list: command = ["sh", "-c", "echo hello"].`,
	"count":      `Write tasks = 3 for a stage of three tasks.`,
	"depends_on": `Write after = ["name"] in a stage that begins after another one.`,
	"retries":    `Write attempts = 4 in a stage for at most four attempts of a task.`,
	"timeout":    `Write time_limit = "30m" in a stage for a limit of each attempt, or runtime_bound in the job.`,
}

var misplacedBlocks = map[string]string{
	"resources": inStage, "file": inStage, "secret": inStage,
	"stage": inJob, "input": inJob, "output": inJob,
	"variable": `It belongs beside the job, outside of it: variable "name" { default = "…" }.`,
}

// cureUnknown completes HCL's message about an attribute or block that a body does not have, and
// returns the name that was probably meant. HCL's own suggestion is not used: it suggests any name
// that differs in two letters, such as "disk" for "task".
func cureUnknown(g *hcl.Diagnostic, fields map[string]attrReader, blocks map[string]blockSpec) (m meaning, unknown bool) {
	isBlock := g.Summary == "Unsupported block type"
	if !isBlock && g.Summary != "Unsupported argument" {
		return m, false
	}
	_, rest, _ := strings.Cut(g.Detail, `"`)
	name, _, _ := strings.Cut(rest, `"`)
	g.Detail, _, _ = strings.Cut(g.Detail, "Did you mean")
	m = meaningOf(name, isBlock, fields, blocks)
	g.Detail = strings.TrimSpace(g.Detail) + " " + m.hint
	return m, true
}

// meaning is what an unknown name probably means.
type meaning struct {
	hint      string // what to write instead
	here      string // the field of the same body; "" for none
	elsewhere string // the field of another body; "" for none
	isBlock   bool   // it is the name of a block
}

func meaningOf(name string, isBlock bool, fields map[string]attrReader, blocks map[string]blockSpec) meaning {
	_, isField := fields[name]
	_, known := blocks[name]
	switch {
	case isBlock && isField:
		return meaning{fmt.Sprintf("Did you mean to define argument %q? If so, use the equals sign to assign it a value.", name), name, "", isBlock}
	case known:
		return meaning{fmt.Sprintf("Did you mean to define a block of type %q?", name), name, "", isBlock}
	case misplacedBlocks[name] != "":
		return meaning{misplacedBlocks[name], "", name, isBlock}
	case misplaced[name] != "":
		return meaning{misplaced[name], "", name, isBlock}
	}
	here, elsewhere := slices.Sorted(maps.Keys(fields)), misplaced
	if isBlock {
		here, elsewhere = slices.Sorted(maps.Keys(blocks)), misplacedBlocks
	}
	if near := jobspec.Suggest(name, here); near != "" {
		return meaning{fmt.Sprintf("Did you mean %q?", near), near, "", isBlock}
	}
	if near := jobspec.Suggest(name, slices.Sorted(maps.Keys(elsewhere))); near != "" {
		return meaning{fmt.Sprintf("Did you mean %q? %s", near, elsewhere[near]), "", near, isBlock}
	}
	if isBlock && len(blocks) == 0 {
		return meaning{"There are no blocks here.", "", "", isBlock}
	}
	if isBlock {
		fields = nil
	}
	return meaning{"Expected are: " + listNames(fields, blocks) + ".", "", "", isBlock}
}

// cureExpression says what to write instead of a function, and instead of a list inside a text. uses says what the variables
// of the expression are.
func cureExpression(g *hcl.Diagnostic, uses string) {
	switch g.Summary {
	case "Function calls not allowed":
		g.Detail = "Job files have no functions. Write the value itself."
	case "Invalid template interpolation value":
		g.Detail = "Only text, a number, true or false can stand inside a text"
		if uses != "" {
			g.Detail += "; " + uses
		}
	}
}

// cureTemplate says what to write instead of a variable in the name of a block.
func cureTemplate(g *hcl.Diagnostic) {
	if g.Summary == "Invalid string literal" && strings.HasPrefix(g.Detail, "Template sequences") {
		g.Summary, g.Detail = "a name holds no variable", "write the name itself; the flag -name of drover job run gives a job another one"
	}
}

// cureLabels says how the header of a block with too few or too many labels is
// written.
func cureLabels(g *hcl.Diagnostic, schema *hcl.BodySchema) {
	for _, b := range schema.Blocks {
		missing, extra := "Missing name for "+b.Type, "Extraneous label for "+b.Type
		if g.Summary != missing && g.Summary != extra {
			continue
		}
		header := b.Type
		if len(b.LabelNames) > 0 {
			header += ` "name"`
		}
		g.Detail = "Write " + header + " { … }."
	}
}

// listNames names the attributes and the blocks that are expected.
func listNames(fields map[string]attrReader, blocks map[string]blockSpec) string {
	text := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
	if len(fields) > 0 && len(blocks) > 0 {
		text += "; and blocks: "
	}
	return text + strings.Join(slices.Sorted(maps.Keys(blocks)), ", ")
}

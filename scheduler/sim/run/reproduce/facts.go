package reproduce

// derivedClaims names the claims that state no fact of their own: their value follows from that of
// another claim, in the papers or in the experiments. Both numbers are reported: claims, as written
// down before the first run, and facts, which count such rows once.
//
//   - A published mean of two published values is derived from the first of the two.
//   - Where both schedulers do the same work, throughput, completion time and the use of each
//     resource are one degree of freedom: three of them follow from the first.
//   - A number that a paper prints twice counts once.
var derivedClaims = map[string]string{
	"3dsf/terasort/completion": "3dsf/terasort/throughput", "3dsf/terasort/cpu": "3dsf/terasort/throughput", "3dsf/terasort/memory": "3dsf/terasort/throughput",
	"3dsf/terasort/io": "3dsf/terasort/throughput", "3dsf/terasort/completion_6k": "3dsf/terasort/throughput",
	"3dsf/mixed/completion": "3dsf/mixed/throughput", "3dsf/mixed/cpu": "3dsf/mixed/throughput", "3dsf/mixed/memory": "3dsf/mixed/throughput",
	"3dsf/mixed/io": "3dsf/mixed/throughput", "3dsf/mixed/completion_18k": "3dsf/mixed/throughput", "3dsf/mixed/qos": "3dsf/mixed/qos_33",
	"3dsf/case1/completion": "3dsf/case1/throughput", "3dsf/case1/cpu": "3dsf/case1/throughput", "3dsf/case1/memory": "3dsf/case1/throughput",
	"3dsf/case1/io": "3dsf/case1/throughput", "3dsf/case1/throughput_gain": "3dsf/case1/throughput",
	"3dsf/cases234/throughput": "3dsf/cases234/throughput_33", "3dsf/cases234/completion": "3dsf/cases234/throughput_33", "3dsf/cases234/cpu": "3dsf/cases234/throughput_33",
	"3dsf/cases234/memory": "3dsf/cases234/throughput_33", "3dsf/cases234/io": "3dsf/cases234/throughput_33", "3dsf/cases234/completion_12k": "3dsf/cases234/throughput_33",
	"pdsonqueue/cases/throughput": "pdsonqueue/cases/throughput_33", "pdsonqueue/cases/completion": "pdsonqueue/cases/throughput_33",
}

// factVerdicts returns the verdicts of claims that state a fact of their own.
func factVerdicts(vs []Verdict) []Verdict {
	var out []Verdict
	for i := range vs {
		if derivedClaims[vs[i].ID] == "" {
			out = append(out, vs[i])
		}
	}
	return out
}

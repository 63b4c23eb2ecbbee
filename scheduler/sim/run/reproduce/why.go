package reproduce

// Why claims were missed: what the runs show, by the end of the claim's id; ""
// for all other claims of the experiment.
var (
	// whyWorse says, by workload and metric, why 3dsf is more than 5% worse than
	// the best specialist, and what would close it.
	whyWorse = map[string]string{}

	whyFig8  = map[string]string{}
	whyFig9  = map[string]string{}
	whyFig10 = map[string]string{}
	whyFig11 = map[string]string{}
	whyFig12 = map[string]string{}
)

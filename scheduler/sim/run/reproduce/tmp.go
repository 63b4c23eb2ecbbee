package reproduce

func lasExperiments() []Experiment { return nil }
func pdsExperiments() []Experiment { return nil }
func dsfExperiments() []Experiment { return nil }

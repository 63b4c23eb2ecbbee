package policies

import "slices"

// table is the list of policies.
var table = withCommonParams(
	threeDSFInfo,
	fifoInfo,
	fairInfo,
	equInfo,
	capacityInfo,
	lasInfo,
	sjfInfo,
	idealInfo,
	edfInfo,
	drfInfo,
	pdsonqueueInfo,
	lasMQInfo,
	easyInfo,
	multifactorInfo,
	conservativeInfo,
	twoTierInfo,
)

// withCommonParams adds the parameters that every policy has.
func withCommonParams(table ...Info) []Info {
	for i := range table {
		table[i].Params = append(slices.Clip(table[i].Params), speculateParam)
	}
	return table
}

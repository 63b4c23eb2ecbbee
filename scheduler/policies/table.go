package policies

// table is the list of policies, one line each.
var table = []Info{
	fifoInfo,
	fairInfo,
	equInfo,
	capacityInfo,
	lasInfo,
	sjfInfo,
	idealInfo,
	edfInfo,
}

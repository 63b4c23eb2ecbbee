package policies

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

package coordinator

import (
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/facts"
)

// access is the kind of certificate that a procedure requires. Whatever depends on the request,
// such as rights to the job it names, is checked by the handlers.
type access int

const (
	accessUser      access = iota + 1 // any user
	accessSubmitter                   // a user who may submit in at least one tenant
	accessOperator                    // an operator of the cluster
	accessNode                        // a node
	accessPeer                        // another coordinator, on the port for coordinators
)

// procedure is the static description of a call of the API.
type procedure struct {
	access     access
	pool       func(*pools) *pool
	maxMessage int    // bytes of one request message
	oneMessage bool   // the request is one message; otherwise a stream of them
	what       string // what an operator's call does, for the message to callers who may not make it
}

// Sizes of request messages, in bytes. JSON needs more than the binary form:
// a specification is a string in it, with its quotes escaped.
const (
	smallMessage  = 64 << 10
	tenantMessage = 2 << 20
	digestMessage = 1 << 20 // maxDigests digests
	specMessage   = 4 << 20 // jobspec.MaxBytes, each byte escaped
	uploadMessage = 4 << 20
	execMessage   = 256 << 10
	secretMessage = 2 * facts.MaxSecretValue // in base64
	reportMessage = 16 << 20
)

// procedures lists every call of the API. Calls that are not listed are refused.
var procedures = map[string]procedure{
	droverv1connect.ClientServiceStatusProcedure:       userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceHasBlobsProcedure:     userCall(accessSubmitter, digestMessage),
	droverv1connect.ClientServicePutBlobProcedure:      {accessSubmitter, func(p *pools) *pool { return p.uploads }, uploadMessage, false, ""},
	droverv1connect.ClientServiceSubmitJobProcedure:    userCall(accessSubmitter, specMessage),
	droverv1connect.ClientServicePlanJobProcedure:      userCall(accessSubmitter, specMessage),
	droverv1connect.ClientServiceListJobsProcedure:     userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceGetJobProcedure:       userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceStopJobProcedure:      userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceWatchJobProcedure:     userStream(),
	droverv1connect.ClientServiceListTasksProcedure:    userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceLogsProcedure:         userStream(),
	droverv1connect.ClientServiceExecProcedure:         {accessUser, func(p *pools) *pool { return p.execs }, execMessage, false, ""},
	droverv1connect.ClientServiceSetLevelProcedure:     userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceListNodesProcedure:    userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceDrainNodeProcedure:    operatorCall("drain nodes", smallMessage),
	droverv1connect.ClientServiceMaintainNodeProcedure: operatorCall("order maintenance", smallMessage),
	droverv1connect.ClientServiceApplyTenantsProcedure: operatorCall("change tenants", tenantMessage),
	droverv1connect.ClientServiceDeleteTenantProcedure: operatorCall("delete tenants", smallMessage),
	droverv1connect.ClientServiceListTenantsProcedure:  userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceEventsProcedure:       userStream(),
	droverv1connect.ClientServiceGetSchedulerProcedure: userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceSetSchedulerProcedure: operatorCall("choose the scheduler", smallMessage),
	droverv1connect.ClientServiceCalibrationProcedure:  userCall(accessUser, smallMessage),
	droverv1connect.ClientServiceGetScheduleProcedure:  userCall(accessUser, smallMessage),

	droverv1connect.OperatorServiceSaveSnapshotProcedure:       {accessOperator, func(p *pools) *pool { return p.streams }, smallMessage, true, "save snapshots"},
	droverv1connect.OperatorServiceListServersProcedure:        operatorCall("list servers", smallMessage),
	droverv1connect.OperatorServiceAddServerProcedure:          operatorCall("add servers", smallMessage),
	droverv1connect.OperatorServiceRemoveServerProcedure:       operatorCall("remove servers", smallMessage),
	droverv1connect.OperatorServiceTransferLeadershipProcedure: operatorCall("choose the leader", smallMessage),
	droverv1connect.OperatorServiceListUnknownRunsProcedure:    operatorCall("list unknown runs", smallMessage),
	droverv1connect.OperatorServiceDecideUnknownRunProcedure:   operatorCall("decide about unknown runs", smallMessage),

	droverv1connect.TokenServiceCreateTokenProcedure: userCall(accessUser, smallMessage),
	droverv1connect.TokenServiceListTokensProcedure:  userCall(accessUser, smallMessage),
	droverv1connect.TokenServiceRevokeTokenProcedure: userCall(accessUser, smallMessage),

	droverv1connect.SecretServicePutSecretProcedure:     userCall(accessUser, secretMessage),
	droverv1connect.SecretServiceListSecretsProcedure:   userCall(accessUser, smallMessage),
	droverv1connect.SecretServiceDeleteSecretProcedure:  userCall(accessUser, smallMessage),
	droverv1connect.SecretServiceRotateSecretsProcedure: operatorCall("rotate the keys of secrets", smallMessage),

	droverv1connect.DebugServiceMonitorProcedure: debugStream("read the daemons' logs"),
	droverv1connect.DebugServiceProfileProcedure: debugStream("profile the daemons"),

	droverv1connect.PeerServiceDescribeProcedure:            peerCall(smallMessage),
	droverv1connect.PeerServiceJoinProcedure:                peerCall(smallMessage),
	droverv1connect.PeerServiceFetchFilesProcedure:          peerCall(digestMessage),
	droverv1connect.PeerServiceGetFileProcedure:             peerCall(smallMessage),
	droverv1connect.HistoryServiceListPastJobsProcedure:     userCall(accessUser, smallMessage),
	droverv1connect.HistoryServiceGetPastJobProcedure:       userCall(accessUser, smallMessage),
	droverv1connect.HistoryServiceListPastAttemptsProcedure: userCall(accessUser, smallMessage),
	droverv1connect.HistoryServiceUsageProcedure:            userCall(accessUser, smallMessage),
	droverv1connect.HistoryServiceListPastSamplesProcedure:  userCall(accessUser, smallMessage),

	droverv1connect.NodeServiceRegisterProcedure:   nodeCall(),
	droverv1connect.NodeServiceWatchProcedure:      {accessNode, func(p *pools) *pool { return p.nodeStreams }, smallMessage, true, ""},
	droverv1connect.NodeServiceReportProcedure:     nodeCall(),
	droverv1connect.NodeServiceGetSecretsProcedure: {accessNode, func(p *pools) *pool { return p.nodeCalls }, smallMessage, true, ""},
	droverv1connect.NodeServiceGetBlobProcedure:    {accessNode, func(p *pools) *pool { return p.nodeFetches }, smallMessage, true, ""},
}

func userCall(a access, maxMessage int) procedure {
	return procedure{a, func(p *pools) *pool { return p.calls }, maxMessage, true, ""}
}

func operatorCall(what string, maxMessage int) procedure {
	return procedure{accessOperator, func(p *pools) *pool { return p.calls }, maxMessage, true, what}
}

func debugStream(what string) procedure {
	return procedure{accessOperator, func(p *pools) *pool { return p.streams }, smallMessage, true, what}
}

func userStream() procedure {
	return procedure{accessUser, func(p *pools) *pool { return p.streams }, smallMessage, true, ""}
}

func nodeCall() procedure {
	return procedure{accessNode, func(p *pools) *pool { return p.nodeCalls }, reportMessage, true, ""}
}

func peerCall(maxMessage int) procedure {
	return procedure{accessPeer, func(p *pools) *pool { return p.peerCalls }, maxMessage, true, ""}
}

// bodyPool returns the pool of the bytes of a procedure's requests.
func (p *pools) bodyPool(a access) *pool {
	if a == accessNode || a == accessPeer {
		return p.nodeBytes
	}
	return p.body
}

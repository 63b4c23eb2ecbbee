package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/audit"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
)

// auditedCalls are the calls of users that are audited whatever their outcome: those that change
// something, and those that only operators may make. Two kinds are left out: uploads, because the
// submission that uses them is audited, and operators' lists, which scripts repeat all the time.
// All other calls of users are audited only when they are refused for want of rights. Reports of
// nodes and coordinators are never audited.
var auditedCalls = map[string]bool{
	droverv1connect.ClientServiceSubmitJobProcedure:            true,
	droverv1connect.ClientServiceStopJobProcedure:              true,
	droverv1connect.ClientServiceExecProcedure:                 true,
	droverv1connect.ClientServiceSetLevelProcedure:             true,
	droverv1connect.ClientServiceDrainNodeProcedure:            true,
	droverv1connect.ClientServiceMaintainNodeProcedure:         true,
	droverv1connect.ClientServiceApplyTenantsProcedure:         true,
	droverv1connect.ClientServiceDeleteTenantProcedure:         true,
	droverv1connect.ClientServiceSetSchedulerProcedure:         true,
	droverv1connect.OperatorServiceSaveSnapshotProcedure:       true,
	droverv1connect.OperatorServiceAddServerProcedure:          true,
	droverv1connect.OperatorServiceRemoveServerProcedure:       true,
	droverv1connect.OperatorServiceTransferLeadershipProcedure: true,
	droverv1connect.OperatorServiceDecideUnknownRunProcedure:   true,
	droverv1connect.TokenServiceCreateTokenProcedure:           true,
	droverv1connect.TokenServiceRevokeTokenProcedure:           true,
	droverv1connect.SecretServicePutSecretProcedure:            true,
	droverv1connect.SecretServiceDeleteSecretProcedure:         true,
	droverv1connect.SecretServiceRotateSecretsProcedure:        true,
	droverv1connect.DebugServiceMonitorProcedure:               true,
	droverv1connect.DebugServiceProfileProcedure:               true,
}

// maxAuditText bounds an actor, target or error in the audit log, in bytes.
const maxAuditText = 500

// auditText makes a text that a user may have chosen safe to print: operators read the audit log on
// terminals, and JSON escapes only some of the control characters.
func auditText(s string) string { return clipText(plain.Line(clipText(s, maxAuditText)), maxAuditText) }

// auditor writes the audit log.
type auditor struct {
	log     *audit.Log // nil: there is none
	now     func() time.Time
	failure *slog.Logger // says what could not be written

	users, strangers *refusalRecords
}

func newAuditor(now func() time.Time, failure *slog.Logger) *auditor {
	return &auditor{now: now, failure: failure, users: newRefusalRecords(recordsOfUser, maxCountedUsers), strangers: newRefusalRecords(recordsOfStranger, maxCountedNetworks)}
}

// openAuditor opens the audit log, if one is configured.
func openAuditor(cfg Config) (_ *auditor, err error) {
	a := newAuditor(cfg.Now, cfg.Logger)
	switch cfg.AuditLog {
	case noAuditLog:
		return a, nil
	case "":
		a.log, err = audit.Open(filepath.Join(cfg.Dir, "audit.jsonl"), 0)
	default:
		a.log, err = audit.Open(cfg.AuditLog, 0)
	}
	return a, err
}

func (a *auditor) close() error {
	a.writeOmitted()
	return a.log.Close()
}

// auditedCall is a call that has ended.
type auditedCall struct {
	procedure string
	from      string // network address of the caller
	target    string
	began     bool // a stream that has sent at least one message
}

// record writes the audit record of a call, unless the call is not audited, or is one of many
// refused calls that are only counted.
func (a *auditor) record(ctx context.Context, c auditedCall, err error) {
	if a.log == nil {
		return
	}
	err = wire.FromError(err)
	if !auditedCalls[c.procedure] && !errors.Is(err, fault.Denied) {
		return
	}
	id := caller(ctx)
	r := audit.Record{Time: a.now(), Actor: auditText(id.displayName()), From: c.from, Call: path.Base(c.procedure), Target: auditText(c.target), Outcome: auditOutcome(err)}
	if err != nil {
		r.Error = auditText(err.Error())
	}
	if !c.began && changedNothing(err) && !a.admitRefusal(id, c.from, &r, err) {
		return
	}
	a.write(r)
}

// write writes a record. If that fails, the call does not fail, because it has already had its
// effect; the error is logged.
func (a *auditor) write(r audit.Record) {
	if err := a.log.Write(r); err != nil {
		a.failure.Error("a call is missing in the audit log", "call", r.Call, "actor", r.Actor, "target", r.Target, "outcome", r.Outcome, "err", err)
	}
}

// recordRefusal writes the record of a request that was refused before its body was read.
func (a *auditor) recordRefusal(r *http.Request, err error) {
	if _, ok := wire.LeaderOf(toWireError(err)); !ok {
		a.record(r.Context(), auditedCall{procedure: r.URL.Path, from: r.RemoteAddr}, err)
	}
}

func auditOutcome(err error) string {
	switch class := fault.Class(err); {
	case err == nil:
		return "ok"
	case class != nil:
		return class.Error()
	default:
		return connect.CodeOf(err).String()
	}
}

// auditTarget returns what a call is about, from its first request message.
func auditTarget(message any) string {
	switch m := message.(type) {
	case *droverv1.StopJobRequest:
		return "job " + m.GetJob()
	case *droverv1.SetLevelRequest:
		return fmt.Sprintf("job %s task %s/%d to %s", m.GetJob(), m.GetStage(), m.GetTask(), levelWord(m.GetLevel()))
	case *droverv1.DrainNodeRequest:
		if m.GetOff() {
			return "node " + m.GetNode() + " schedulable again"
		}
		return "node " + m.GetNode()
	case *droverv1.MaintainNodeRequest:
		if m.GetCancel() {
			return "node " + m.GetNode() + " maintenance cancelled"
		}
		return "node " + m.GetNode() + " maintenance"
	case *droverv1.ApplyTenantsRequest:
		var names []string
		for _, t := range m.GetTenants() {
			names = append(names, t.GetName())
		}
		return "tenants " + strings.Join(names, " ")
	case *droverv1.DeleteTenantRequest:
		return "tenant " + m.GetName()
	case *droverv1.SetSchedulerRequest:
		return "scheduler " + m.GetName()
	case *droverv1.AddServerRequest:
		return "server " + m.GetId()
	case *droverv1.RemoveServerRequest:
		return "server " + m.GetId()
	case *droverv1.TransferLeadershipRequest:
		return "server " + m.GetId()
	case *droverv1.DecideUnknownRunRequest:
		k := m.GetKey()
		word := strings.ToLower(strings.TrimPrefix(m.GetDecision().String(), "UNKNOWN_RUN_DECISION_"))
		return fmt.Sprintf("%s run %d.%d.%d.%d.%d on node %s", word, k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt(), k.GetRun(), m.GetNode())
	case *droverv1.RevokeTokenRequest:
		return "token " + m.GetId()
	case *droverv1.PutSecretRequest:
		return secretTarget(m.GetTenant(), m.GetName(), 0)
	case *droverv1.DeleteSecretRequest:
		return secretTarget(m.GetTenant(), m.GetName(), m.GetVersion())
	case *droverv1.GetSecretsRequest:
		k := m.GetKey()
		return fmt.Sprintf("secrets of job %d stage %d task %d attempt %d", k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt())
	case *droverv1.ExecRequest:
		k := m.GetKey()
		return fmt.Sprintf("job %d stage %d task %d attempt %d", k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt())
	case *droverv1.MonitorRequest:
		return "node " + m.GetNode()
	case *droverv1.ProfileRequest:
		return "node " + m.GetNode()
	default:
		return ""
	}
}

// secretTarget names a secret in the audit log; version 0 means all.
func secretTarget(tenant, name string, version uint32) string {
	if version == 0 {
		return "secret " + name + " of tenant " + tenant
	}
	return fmt.Sprintf("secret %s of tenant %s, version %d", name, tenant, version)
}

func levelWord(l droverv1.Level) string {
	return strings.ToLower(strings.TrimPrefix(l.String(), "LEVEL_"))
}

// auditResult adds to target what only the response says, such as a new job's number.
func auditResult(target string, res connect.AnyResponse, err error) string {
	if err != nil || res == nil {
		return target
	}
	switch m := res.Any().(type) {
	case *droverv1.SubmitJobResponse:
		return fmt.Sprintf("job %d %s", m.GetJob(), m.GetName())
	case *droverv1.PutSecretResponse:
		return fmt.Sprintf("%s, version %d", target, m.GetVersion())
	case *droverv1.RotateSecretsResponse:
		return fmt.Sprintf("%d secrets to key %s", m.GetRotated(), m.GetKey())
	case *droverv1.CreateTokenResponse:
		return "token " + m.GetToken().GetId() + " of " + m.GetToken().GetUser()
	default:
		return target
	}
}

// auditedConn remembers the target of a stream's first message, and whether anything was sent.
type auditedConn struct {
	connect.StreamingHandlerConn
	received bool
	target   string
	sent     atomic.Bool
}

// Receive implements connect.StreamingHandlerConn.
func (a *auditedConn) Receive(m any) error {
	err := a.StreamingHandlerConn.Receive(m)
	if err == nil && !a.received {
		a.received, a.target = true, auditTarget(m)
	}
	return err
}

// Send implements connect.StreamingHandlerConn.
func (a *auditedConn) Send(m any) error {
	a.sent.Store(true)
	return a.StreamingHandlerConn.Send(m)
}

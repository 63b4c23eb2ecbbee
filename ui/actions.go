package ui

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/fault"
)

// actions does what buttons say, with the rights of the reader in the context.
type actions struct {
	api droverv1connect.ClientServiceClient
}

// act is something that a button does. It returns the address to go to.
type act func(*actions, context.Context, url.Values) (string, error)

var acts = map[string]act{
	"stop-job": (*actions).stopJob,
	"suspend-job": func(a *actions, ctx context.Context, v url.Values) (string, error) {
		return a.setAllLevels(ctx, v, droverv1.Level_LEVEL_FROZEN)
	},
	"resume-job": func(a *actions, ctx context.Context, v url.Values) (string, error) {
		return a.setAllLevels(ctx, v, droverv1.Level_LEVEL_RUNNING)
	},
	"run-again": (*actions).runAgain,
	"set-level": (*actions).setLevel,
	"drain":     func(a *actions, ctx context.Context, v url.Values) (string, error) { return a.drain(ctx, v, false) },
	"undrain":   func(a *actions, ctx context.Context, v url.Values) (string, error) { return a.drain(ctx, v, true) },
}

// serveAction does what a button says, with the reader's rights. A request of
// another origin never gets here; one without the form's token does nothing.
func (s *server) serveAction(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	q, err := s.newQuery(r.Context(), r.URL)
	if err == nil {
		err = r.ParseForm()
	}
	if err != nil {
		http.Error(w, "the form cannot be read: go back and try again", http.StatusBadRequest)
		return
	}
	if !hmac.Equal([]byte(r.PostForm.Get("token")), []byte(q.token)) {
		s.refuse(w, r, q, fault.New(fault.Denied, "the form is not of this page, or from before the coordinator's restart: go back, reload the page, and try again"))
		return
	}
	do := acts[r.PathValue("action")]
	if do == nil {
		s.refuse(w, r, q, fault.New(fault.NotFound, "there is no such action"))
		return
	}
	to, err := do(&actions{s.api}, r.Context(), r.PostForm)
	s.shared.drop(q.reader)
	s.shared.drop(q.rights)
	if err != nil {
		s.refuse(w, r, q, err)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// refuse shows why an action was not done.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, q *query, err error) {
	v := errorView(err)
	v.Title, v.Template = "Not done", "error"
	var b strings.Builder
	if err := q.renderPage(&b, v, "", false); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeBody(w, r, statusOf(err), "text/html; charset=utf-8", []byte(b.String()))
}

func (a *actions) stopJob(ctx context.Context, v url.Values) (string, error) {
	_, err := a.api.StopJob(ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: v.Get("job"), Reason: "stopped on the page"}))
	if err != nil {
		return "", classify(err)
	}
	return address("jobs", v.Get("job")), nil
}

// maxLevelCalls bounds the tasks that one button suspends or resumes.
const maxLevelCalls = 1000

// setAllLevels brings the tasks of a job that run to a level of suspension, or
// those that are suspended back.
func (a *actions) setAllLevels(ctx context.Context, v url.Values, to droverv1.Level) (string, error) {
	job, done, refused := v.Get("job"), 0, 0
	var why error
	for from := int32(0); ; {
		res, err := a.api.ListTasks(ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: job, From: from}))
		if err != nil {
			return "", classify(err)
		}
		for _, t := range res.Msg.GetTasks() {
			if !wantsLevel(t, to) {
				continue
			}
			if done++; done > maxLevelCalls {
				return "", fault.New(fault.Exhausted, "%d tasks were asked to change; press the button again for the rest", maxLevelCalls)
			}
			req := &droverv1.SetLevelRequest{Job: job, Stage: t.GetStage(), Task: t.GetTask(), Level: to, Reason: "asked on the page"}
			_, err := a.api.SetLevel(ctx, connect.NewRequest(req))
			if err = classify(err); errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) { // it may have ended meanwhile
				refused, why = refused+1, err
			} else if err != nil {
				return "", err
			}
		}
		from += int32(len(res.Msg.GetTasks()))
		if len(res.Msg.GetTasks()) > 0 && from < res.Msg.GetTotal() {
			continue
		}
		if refused > 0 {
			return "", fault.New(fault.Conflict, "%d of %d tasks were refused and the others asked to change; the last refusal: %s", refused, done, why.Error())
		}
		return address("jobs", job), nil
	}
}

// wantsLevel reports whether a task has an attempt that a button for all tasks
// changes.
func wantsLevel(t *droverv1.TaskStatus, to droverv1.Level) bool {
	for _, a := range t.GetAttempts() {
		if isOver(a.GetSeen()) || a.GetSeen().GetPhase() != droverv1.Phase_PHASE_RUNNING {
			continue
		}
		suspended := a.GetSeen().GetLevel() > droverv1.Level_LEVEL_RUNNING
		return suspended == (to == droverv1.Level_LEVEL_RUNNING)
	}
	return false
}

func (a *actions) setLevel(ctx context.Context, v url.Values) (string, error) {
	index, err := parseIndex(v.Get("task"))
	if err != nil {
		return "", fault.New(fault.Invalid, "%q is no number of a task", v.Get("task"))
	}
	level, ok := droverv1.Level_value["LEVEL_"+strings.ToUpper(v.Get("level"))]
	if !ok {
		return "", fault.New(fault.Invalid, "%q is no level", v.Get("level"))
	}
	req := &droverv1.SetLevelRequest{Job: v.Get("job"), Stage: v.Get("stage"), Task: index, Level: droverv1.Level(level), Node: v.Get("node"), Reason: "asked on the page"}
	if _, err := a.api.SetLevel(ctx, connect.NewRequest(req)); err != nil {
		return "", classify(err)
	}
	return address("jobs", v.Get("job"), "tasks", v.Get("stage"), index), nil
}

// runAgain submits the specification of a job again.
func (a *actions) runAgain(ctx context.Context, v url.Values) (string, error) {
	old, err := a.api.GetJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: v.Get("job")}))
	if err != nil {
		return "", classify(err)
	}
	res, err := a.api.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: old.Msg.GetSpec()}))
	if err != nil {
		return "", classify(err)
	}
	return address("jobs", fmt.Sprint(res.Msg.GetJob())), nil
}

func (a *actions) drain(ctx context.Context, v url.Values, off bool) (string, error) {
	if _, err := a.api.DrainNode(ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: v.Get("node"), Off: off})); err != nil {
		return "", classify(err)
	}
	return address("nodes", v.Get("node")), nil
}

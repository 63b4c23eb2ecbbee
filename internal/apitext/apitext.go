// Package apitext returns the words for values of the API's enumerations, as users read them in
// messages, lists, events and metrics.
package apitext

import (
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// JobState returns the word for a job's state, such as "running".
func JobState(s droverv1.JobState) string { return word(s.String(), "JOB_STATE_") }

// Cause returns the word for the cause of a failure, such as "infra"; "unspecified" if a node
// reported none.
func Cause(c droverv1.Cause) string { return word(c.String(), "CAUSE_") }

func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

package main

import (
	"bytes"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func TestWhy(t *testing.T) {
	var out bytes.Buffer
	printWhy(&out, &droverv1.GetScheduleResponse{
		Nodes: []*droverv1.ScheduleNode{{Node: 1, Name: "n1"}},
		Jobs:  []*droverv1.ScheduleJob{{Job: 4, Name: "sort", Stages: []string{"map", "reduce"}}, {Job: 5, Name: "own\x1b[31m", Stages: []string{"main"}}},
		Waiting: []*droverv1.ScheduleWaiting{{Job: 5, Tasks: 3, Reason: "no free cpu on 1 node", BehindJob: 4, Obstacles: []*droverv1.ScheduleObstacle{
			{Node: 1, Job: 4, Key: &droverv1.AttemptKey{Job: 4, Stage: 1, Task: 7}}, {Node: 1, Key: &droverv1.AttemptKey{Run: 9}}, {Node: 1, Job: 5, Reservation: 12}, {Node: 1, Reservation: 13}}},
			{Job: 5, Stage: 8, Tasks: 1, Reason: "stage main is not done"}},
	})
	const want = `main: 3 waiting: no free cpu on 1 node
  goes first: job 4
  to start one now on n1, would have to give way: reduce/7 of job 4 (sort), an attempt of a job that you may not read, reservation 12 of job 5 (own\u001b[31m), reservation 13 of a job that you may not read
8: 1 waiting: stage main is not done
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}

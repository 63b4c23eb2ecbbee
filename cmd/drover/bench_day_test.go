package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// TestDayIsFlat is a hundredth of a day of short jobs, a tenth with DROVER_SOAK, as many jobs and as
// one: memory, goroutines, descriptors, attempts, folders, files and disk of coordinator and node do not grow.
func TestDayIsFlat(t *testing.T) {
	jobs, tasks, growth := dayJobs/100, 10, 0.25
	switch {
	case os.Getenv("DROVER_SOAK") != "":
		jobs = dayJobs / 10
	case testing.Short():
		t.Skip("not proved here: that a day of short jobs leaves nothing that grows; it takes a minute, run it without -short")
	}
	for _, shape := range []string{dayMany, dayOne} {
		t.Run(shape, func(t *testing.T) {
			args := []string{"bench", "day", "-shape", shape, "-jobs", strconv.Itoa(jobs), "-tasks", strconv.Itoa(tasks), "-growth", strconv.FormatFloat(growth, 'f', 2, 64), "-limit", "9m"}
			if shape == dayOne {
				args = append(args, "-logs", "0") // logs of a live job stay
			}
			out, err := droverOutput(t, args...)
			if err != nil || strings.Count(out, "  within ") != len(dayQuantities) {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

func TestDayReportsWhatGrows(t *testing.T) {
	var all []daySample
	for i := range 100 {
		all = append(all, daySample{Folders: float64(i), Files: 7})
	}
	if a, b := dayMedian(all, 0.25, 0.5, func(s *daySample) float64 { return s.Folders }), dayMedian(all, 0.75, 1, func(s *daySample) float64 { return s.Folders }); a != 37 || b != 87 {
		t.Errorf("medians %g and %g", a, b)
	}
	line, top := dayPlot(all, func(s *daySample) float64 { return s.Folders })
	if r := []rune(line); top != 99 || len(r) != dayColumns || r[0] != ' ' || r[dayColumns-1] != '█' {
		t.Errorf("%q to %g", line, top)
	}
}

func TestDayNamesTheSlack(t *testing.T) {
	inUse := dayQuantity{name: "in use, MiB", slack: 16}
	for _, c := range []struct {
		start, end   float64
		growth, want string
		grows        bool
	}{
		{100, 100, "+0%", "within 25%", false},
		{100, 120, "+20%", "within 25%", false},
		{13, 23, "+77%", "within a slack of 16", false},
		{13, 30, "+131%", "GROWS", true},
		{100, 90, "-10%", "within 25%", false},
		{0, 9, "-", "within a slack of 16", false},
		{0, 0, "-", "within 25%", false},
	} {
		if growth, state, grows := inUse.change(c.start, c.end, 0.25); growth != c.growth || state != c.want || grows != c.grows {
			t.Errorf("from %g to %g: %q, %q, %v; want %q, %q, %v", c.start, c.end, growth, state, grows, c.growth, c.want, c.grows)
		}
	}
	for _, q := range dayQuantities {
		if text := fmt.Sprintf("%.0f", q.slack); !strings.Contains(benchDayCommand().Description, q.name+" "+text) {
			t.Errorf("the description does not name the slack of %s, %s", q.name, text)
		}
	}
}

func TestDaySaysWhyJobsFailed(t *testing.T) {
	r := &dayRun{failures: map[string]int{}}
	for i := range 20 {
		r.fail(&droverv1.GetJobResponse{Job: &droverv1.JobSummary{Message: fmt.Sprintf("main/%d failed", i)}, FailedTask: fmt.Sprint("main/", i), FailureTail: "no such file\n"})
	}
	for i := range 20 {
		r.fail(&droverv1.GetJobResponse{Job: &droverv1.JobSummary{Message: fmt.Sprint("reason ", i)}})
	}
	if len(r.failures) != dayReasons+1 || r.failures["a task failed: no such file"] != 20 || r.failures["for other reasons"] != 11 {
		t.Errorf("%v", r.failures)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// 64-bit numbers are numbers in -json, below messages, lists and maps too, unless
// a reader that uses floats would change them; text that looks like one stays text.
func TestJSONHasNumbers(t *testing.T) {
	var out bytes.Buffer
	err := printProto(&out, &droverv1.ListTasksResponse{Tasks: []*droverv1.TaskStatus{{Attempts: []*droverv1.TaskAttempt{{
		PlacedMs: 1795388763009, Node: "12", Seen: &droverv1.SeenAttempt{RunningMs: 1<<53 + 1, Counters: map[string]int64{"a": 7, "b": -1 << 60}, Message: "5"}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Tasks []struct {
			Attempts []struct {
				PlacedMS any `json:"placed_ms"`
				Node     any
				Seen     struct {
					RunningMS any `json:"running_ms"`
					Counters  map[string]any
					Message   any
				}
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	a := got.Tasks[0].Attempts[0]
	if a.PlacedMS != 1795388763009.0 || a.Node != "12" || a.Seen.RunningMS != "9007199254740993" || a.Seen.Counters["a"] != 7.0 || a.Seen.Counters["b"] != "-1152921504606846976" || a.Seen.Message != "5" {
		t.Errorf("%+v", a)
	}
}

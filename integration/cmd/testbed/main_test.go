package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestBadCommandLines(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no command to run":              {[]string{"run"}, "missing command"},
		"no machines":                    {[]string{"run", "-nodes", "0", "--", "true"}, "-nodes 0"},
		"too many machines":              {[]string{"run", "-nodes", "10", "--", "true"}, "1 to 9"},
		"too little memory":              {[]string{"up", "-mem", "16"}, "-mem 16"},
		"no processors":                  {[]string{"up", "-cpus", "0"}, "-cpus 0"},
		"DataNodes that die at once":     {[]string{"hdfs", "-dead-after", "1s", "--", "true"}, "at least 3s"},
		"an unknown operation":           {[]string{"control", "explode"}, "explode"},
		"an operation on no number":      {[]string{"control", "kill-machine", "one"}, "one"},
		"no operation":                   {[]string{"control"}, "stop-datanode"},
		"a file to load, to nowhere":     {[]string{"load", "x"}, "usage"},
		"a load on no DataNode":          {[]string{"load", "-on", "0", "x", "/y"}, "from 1"},
		"down with an argument":          {[]string{"down", "n1"}, "no arguments"},
		"an unknown flag":                {[]string{"run", "-nonsense"}, "usage"},
		"an unknown verb, with the list": {[]string{"nonsense"}, "usage"},
		"nothing at all":                 {nil, "usage"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, err := dispatch(tt.args)
			if code != 2 || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("code %d, error %v; want code 2 and %q", code, err, tt.want)
			}
		})
	}
}

func TestParsePlaces(t *testing.T) {
	if got, err := parsePlaces("1,1,3"); err != nil || !reflect.DeepEqual(got, []int{1, 1, 3}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "1,", "a", "-1", "1;2"} {
		if _, err := parsePlaces(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

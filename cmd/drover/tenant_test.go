package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// What a tenant file means: each attribute, its units, and what is left out.
func TestTenantFiles(t *testing.T) {
	none := &droverv1.Resources{}
	for name, c := range map[string]struct {
		text string
		want []*droverv1.Tenant
	}{
		"nothing":          {"", []*droverv1.Tenant{}},
		"only comments":    {"# tenant \"a\" {\n# }\n", []*droverv1.Tenant{}},
		"a tenant alone":   {"tenant \"a\" {\n}\n", []*droverv1.Tenant{{Name: "a", Weight: 1, Cap: none, TaskCap: none}}},
		"two, in order":    {"tenant \"b\" {\n}\ntenant \"a\" {\n  parent = \"b\"\n}\n", []*droverv1.Tenant{{Name: "b", Weight: 1, Cap: none, TaskCap: none}, {Name: "a", Parent: "b", Weight: 1, Cap: none, TaskCap: none}}},
		"a part of a cap":  {"tenant \"a\" {\n  cap {\n    memory = \"1.5GB\"\n  }\n}\n", []*droverv1.Tenant{{Name: "a", Weight: 1, Cap: &droverv1.Resources{Memory: 1_500_000_000}, TaskCap: none}}},
		"an empty cap":     {"tenant \"a\" {\n  cap {}\n  task_cap {}\n}\n", []*droverv1.Tenant{{Name: "a", Weight: 1, Cap: none, TaskCap: none}}},
		"a cap as numbers": {"tenant \"a\" {\n  cap {\n    cpu = 64\n    memory = 4096\n  }\n}\n", []*droverv1.Tenant{{Name: "a", Weight: 1, Cap: &droverv1.Resources{Cpu: 64_000, Memory: 4096}, TaskCap: none}}},
		"everything": {`tenant "a" {
  parent    = "root"
  weight    = 0.5
  uid       = 2001
  hdfs_user = "hdfs"
  submit    = ["user/alice", "group/x"]
  operate   = ["ops"]
  read      = []
  cap {
    cpu    = "500m"
    memory = "256GiB"
    io     = "1GB/s"
  }
  task_cap {
    cpu = "2"
  }
}
`, []*droverv1.Tenant{{Name: "a", Parent: "root", Weight: 0.5, Uid: 2001, HdfsUser: "hdfs", Submit: []string{"user/alice", "group/x"}, Operate: []string{"ops"},
			Cap: &droverv1.Resources{Cpu: 500, Memory: 256 << 30, Io: 1_000_000_000}, TaskCap: &droverv1.Resources{Cpu: 2000}}}},
	} {
		got, err := parseTenants("t.hcl", []byte(c.text))
		if d := cmp.Diff(c.want, got, protocmp.Transform()); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, d)
		}
	}
}

// What a tenant file may not say: each error names the file, the tenant or the line, and nothing of the file is taken.
func TestTenantFilesRefused(t *testing.T) {
	tenant := func(body string) string { return "tenant \"a\" {\n  " + body + "\n}\n" }
	for name, c := range map[string]struct{ text, want string }{
		"a tenant twice":         {tenant("") + tenant(""), `t.hcl: tenant "a" stands there twice: leave one of them out`},
		"no name":                {"tenant {\n}\n", "t.hcl:1"},
		"two names":              {"tenant \"a\" \"b\" {\n}\n", "t.hcl:1"},
		"an unknown attribute":   {tenant("wieght = 2"), `An argument named "wieght" is not expected here. Did you mean "weight"?`},
		"an unknown block":       {tenant("quota {}"), `Blocks of type "quota" are not expected here`},
		"a job":                  {"job \"j\" {\n}\n", `t.hcl is a job file`},
		"a uid below zero":       {tenant("uid = -1"), `t.hcl: tenant "a": uid -1 is out of range`},
		"a uid beyond Linux's":   {tenant("uid = 4294967296"), `t.hcl: tenant "a": uid 4294967296 is out of range`},
		"half a uid":             {tenant("uid = 1.5"), "t.hcl:2"},
		"a weight of nothing":    {tenant("weight = 0"), `t.hcl: tenant "a": weight 0; give a number above 0, or leave it out for 1`},
		"a cap of no cpu":        {tenant("cap {\n cpu = \"0\"\n }"), `t.hcl: cap of tenant "a": "0" is zero, which would be no cap: give more, or leave it out`},
		"a cap that rounds to 0": {tenant("cap {\n cpu = 0.0001\n }"), `cap of tenant "a": "0.0001" is zero, which would be no cap`},
		"a task cap of nothing":  {tenant("task_cap {\n memory = \"0B\"\n }"), `t.hcl: task_cap of tenant "a": "0B" is zero, which would be no cap`},
		"a cap below zero":       {tenant("cap {\n memory = \"-1GiB\"\n }"), `t.hcl: cap of tenant "a": size "-1GiB": want a number with a unit such as 128MiB or 1.5GB`},
		"a rate without seconds": {tenant("cap {\n io = \"1GB\"\n }"), `t.hcl: cap of tenant "a": rate "1GB": want a size per second such as 20MiB/s`},
		"two caps":               {tenant("cap {}\n cap {}"), "Duplicate cap block"},
		"a variable":             {tenant("parent = root"), "Variables not allowed"},
		"half a file":            {"tenant \"a\" {\n", "t.hcl:1"},
		"text that is no list":   {tenant("submit = \"alice\""), "t.hcl:2"},
	} {
		got, err := parseTenants("t.hcl", []byte(c.text))
		if exitCode(err) != exitRefused || got != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: exit code %d, %v, %v; want …%s…", name, exitCode(err), got, err, c.want)
		}
	}
}

package jobspec

import (
	"strings"
	"testing"
)

func TestSecretsOfOtherTenantsAreRefused(t *testing.T) {
	for ref, want := range map[string]string{
		"file:token":              "",
		"file:a/token":            "",
		"file:b/token":            `reference "file:b/token" names a secret of tenant "b", this job's tenant is "a"`,
		"file:a/b/token":          "is not known",
		"file:../b/token":         `names a secret of tenant ".."`,
		"file:a/../token":         "is not known",
		"file:":                   "is not known",
		"file:a/":                 "is not known",
		"file:/token":             `names a secret of tenant ""`,
		"env:HOME":                "is not known",
		"token":                   "is not known",
		"secret:token":            "",
		"secret:token@12":         "",
		"secret:b/token":          "is not known",
		"secret:":                 "is not known",
		"secret:../token":         "is not known",
		"secret:token@":           "has no version",
		"secret:token@0":          "has no version",
		"secret:token@01":         "has no version",
		"secret:token@-1":         "has no version",
		"secret:token@x":          "has no version",
		"secret:token@4294967296": "has no version",
	} {
		j := &Job{Version: 1, Name: "j", Tenant: "a", Stages: []Stage{{Name: "s", Kind: KindGroup, Command: []string{"x"}, Secrets: []Secret{{Env: "T", Ref: ref}}}}}
		SetDefaults(j)
		got := ""
		for _, p := range Validate(j) {
			got += p.String()
		}
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: problems %q, want %q", ref, got, want)
		}
	}
}

package names

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// A regular expression is the reference for the rule.
func TestValid(t *testing.T) {
	rule := regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\z`)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9._@/-]{0,4}`), rapid.StringMatching(`[a-z]{120,135}`)).Draw(t, "name")
		if Valid(name) != rule.MatchString(name) {
			t.Errorf("Valid(%q) = %t", name, Valid(name))
		}
	})
}

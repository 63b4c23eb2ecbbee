package ui

import (
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The scripts have no error that a strict type check finds, and nothing unused.
func TestScriptsTypeCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: the types of the scripts; the full test proves it")
	}
	tsc, err := exec.LookPath("tsc")
	if err != nil {
		t.Skip("not proved here: the types of the scripts: tsc is not installed (apt-get install node-typescript, or make deps)")
	}
	files, err := filepath.Glob("static/*.js")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	args := append([]string{"--noEmit", "--allowJs", "--checkJs", "--strict", "--noUnusedLocals", "--noUnusedParameters", "--noImplicitReturns", "--noFallthroughCasesInSwitch",
		"--target", "es2022", "--module", "es2022", "--moduleResolution", "node", "--lib", "es2022,dom,dom.iterable"}, files...)
	if out, err := exec.Command(tsc, args...).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// The scripts' own tests pass.
func TestScriptsUnitTests(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("not proved here: what the functions of the scripts return: node is not installed (apt-get install nodejs, or make deps)")
	}
	files, err := filepath.Glob("scripttest/*.test.js")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out, err := exec.Command(node, append([]string{"--test", "--test-reporter=tap"}, files...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n# fail 0\n") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// A script that others import has no effects of its own: its address in a page has a
// version, which an import does not have, so that it would run twice.
func TestImportedScriptsRunOnce(t *testing.T) {
	imports := regexp.MustCompile(`(?m)^import .* from "\./(.*)";$`)
	for name, a := range staticAssets() {
		for _, m := range imports.FindAllStringSubmatch(string(a.body), -1) {
			if of := staticAssets()[m[1]]; of == nil || strings.Contains(string(of.body), "\ndocument.") || strings.Contains(string(of.body), "\naddEventListener(") {
				t.Errorf("%s imports %s, which acts when it is loaded", name, m[1])
			}
		}
	}
}

// colours returns the variables of the style sheet, light ones and dark ones.
func colours(t *testing.T) map[string]map[string]string {
	t.Helper()
	blocks := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(string(staticAssets()["page.css"].body), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of variables", len(blocks))
	}
	out := map[string]map[string]string{}
	for i, name := range []string{"light", "dark"} {
		out[name] = map[string]string{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]+);`).FindAllStringSubmatch(blocks[i][1], -1) {
			out[name][m[1]] = m[2]
		}
	}
	return out
}

// luminance is the relative luminance of WCAG 2.2 of #rgb or #rrggbb.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	hex := strings.TrimPrefix(colour, "#")
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatalf("colour %q", colour)
		}
		c := float64(v) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// Text has the contrast of WCAG AA, 4.5 to 1, on everything that it stands on, and
// what pictures draw that of graphics, 3 to 1, in light and dark.
func TestContrast(t *testing.T) {
	rule := regexp.MustCompile(`[;{] background: var\(--([a-z-]+)\); color: var\(--([a-z-]+)\)`)
	chips := regexp.MustCompile(`\{ background: var\(--([a-z-]+)\); color: var\(--([a-z-]+)\); \}`).FindAllStringSubmatch(string(staticAssets()["page.css"].body), -1)
	if len(chips) < 5 {
		t.Fatalf("the style sheet has %d coloured words: the test reads it wrong", len(chips))
	}
	chips = append(chips, rule.FindAllStringSubmatch(string(staticAssets()["page.css"].body), -1)...)
	for mode, of := range colours(t) {
		check := func(on, what string, least float64) {
			t.Helper()
			if of[on] == "" || of[what] == "" {
				t.Fatalf("%s: %q on %q: there is no such colour", mode, what, on)
			}
			a, b := luminance(t, of[on]), luminance(t, of[what])
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < least {
				t.Errorf("%s: %s on %s has contrast %.2f, want %.1f", mode, what, on, ratio, least)
			}
		}
		for _, c := range chips {
			check(c[1], c[2], 4.5)
		}
		for _, on := range []string{"bg", "card", "calm-bg"} {
			for _, text := range []string{"text", "soft", "link"} {
				check(on, text, 4.5)
			}
			check(on, "focus", 3)
		}
		check("card", "bad", 4.5) // a dangerous button
		check("text", "bg", 4.5)  // the tip beside the pointer
		for _, drawn := range []string{"running", "done", "failed", "suspended", "waiting", "starting", "fetching", "committing", "lost", "reserved", "planned"} {
			check("card", drawn, 3)
		}
	}
}

package jobspec

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that is written in JSON as "90s" or "2h30m".
type Duration time.Duration

// MarshalJSON writes the duration as Go does, for example "1m30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("a duration is a string such as \"90s\": %w", err)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit such as 90s, 15m or 2h", s)
	}
	*d = Duration(v)
	return nil
}

// ParseCPU parses "500m", "0.5" or "2" and returns millicores.
func ParseCPU(s string) (int64, error) {
	t := strings.TrimSpace(s)
	scale := 1000.0
	if strings.HasSuffix(t, "m") {
		t, scale = strings.TrimSuffix(t, "m"), 1
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v*scale > 1e12 {
		return 0, fmt.Errorf("cpu %q: want cores such as 2 or 0.5, or millicores such as \"500m\"", s)
	}
	return int64(math.Round(v * scale)), nil
}

// sizeUnits are the suffixes of sizes, longest first, so that "MiB" matches before
// "B".
var sizeUnits = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"PiB", 1 << 50},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"PB", 1e15}, {"B", 1},
}

// ParseSize parses "128MiB" or "1.5GB" and returns bytes; a bare number is bytes.
func ParseSize(s string) (int64, error) {
	t, factor := strings.TrimSpace(s), 1.0
	for _, u := range sizeUnits {
		if strings.HasSuffix(t, u.suffix) {
			t, factor = strings.TrimSpace(strings.TrimSuffix(t, u.suffix)), u.factor
			break
		}
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v*factor > 1<<62 {
		return 0, fmt.Errorf("size %q: want a number with a unit such as 128MiB or 1.5GB", s)
	}
	return int64(math.Round(v * factor)), nil
}

// ParseRate parses "20MiB/s" and returns bytes per second.
func ParseRate(s string) (int64, error) {
	t := strings.TrimSpace(s)
	if !strings.HasSuffix(t, "/s") {
		return 0, fmt.Errorf("rate %q: want a size per second such as 20MiB/s", s)
	}
	v, err := ParseSize(strings.TrimSuffix(t, "/s"))
	if err != nil {
		return 0, fmt.Errorf("rate %q: want a size per second such as 20MiB/s", s)
	}
	return v, nil
}

// FormatCPU formats millicores as ParseCPU reads them.
func FormatCPU(m int64) string {
	if m%1000 == 0 {
		return strconv.FormatInt(m/1000, 10)
	}
	return strconv.FormatInt(m, 10) + "m"
}

// FormatSize formats bytes for people, in the largest binary unit and with at most
// one decimal ("1.5GiB").
func FormatSize(b int64) string { return formatSize(b, math.Round) }

// FormatSizeDown is FormatSize for advice: the text is one that ParseSize reads as at most
// b bytes.
func FormatSizeDown(b int64) string { return formatSize(b, math.Floor) }

func formatSize(b int64, round func(float64) float64) string {
	v, i := float64(b), 0
	names := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for math.Abs(v) >= 1024 && i < len(names)-1 {
		v, i = v/1024, i+1
	}
	return strconv.FormatFloat(round(v*10)/10, 'f', -1, 64) + names[i]
}

// FormatRate formats bytes per second for people ("20MiB/s").
func FormatRate(b int64) string { return FormatSize(b) + "/s" }

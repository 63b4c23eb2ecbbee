// Command pictures takes the pictures of the web page for the documents. It starts `drover dev`,
// submits jobs that run, wait, fail and are suspended, and lets Chromium capture each page, wide
// and narrow, light and dark.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/drover-run/drover/integration/internal/browser"
)

// jobs are the work that the pictures show.
var jobs = []string{`job "reference-tables" {
  stage "load" {
    tasks     = 24
    command   = ["sh", "-c", "sleep 0.$((DROVER_TASK % 7 + 2)); echo loaded part $DROVER_TASK"]
    resources { cpu = "500m"  memory = "512MiB"  io = "5MiB/s" }
  }
}`, `job "broken-import" {
  stage "parse" {
    tasks     = 4
    command   = ["sh", "-c", "echo reading; echo 'Traceback: line 17 of part 3: no column \"price\"' >&2; [ $DROVER_TASK != 3 ]"]
    resources { cpu = "200m"  memory = "128MiB"  io = "5MiB/s" }
  }
}`, `job "night-index" {
  runtime_bound = "10m"
  stage "build" {
    tasks     = 40
    command   = ["sh", "-c", "n=0; while [ $n -lt $((20 + DROVER_TASK % 5 * 8)) ]; do n=$((n+1)); echo block $n written; sleep 1; done"]
    resources { cpu = "250m"  memory = "1GiB"  io = "10MiB/s" }
  }
  stage "merge" {
    after     = ["build"]
    tasks     = 4
    command   = ["sleep", "20"]
    resources { cpu = "500m"  memory = "1GiB"  io = "10MiB/s" }
  }
}`, `job "weekly-report" {
  stage "scan" {
    tasks     = 12
    command   = ["sleep", "30"]
    resources { cpu = "1500m"  memory = "2GiB"  io = "10MiB/s" }
  }
}`}

func main() {
	program := flag.String("drover", "bin/drover", "the program")
	out := flag.String("out", "docs/pictures", "folder of the pictures")
	all := flag.Bool("all", false, "also narrow and dark ones of every page, to look at")
	flag.Parse()
	if err := take(*program, *out, *all); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func take(program, out string, all bool) error {
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pictures")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	dev, err := browser.StartDev(program, dir)
	if err != nil {
		return err
	}
	defer dev.Stop()
	ctx, end, err := browser.Start(context.Background())
	if err != nil {
		return err
	}
	defer end()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(dev.Page), chromedp.WaitVisible(chromedp.CSS(`.connection[data-state=live]`))); err != nil {
		return err
	}
	if all {
		if err := shoot(ctx, dev, out, "empty-jobs", "/jobs", 1280, ""); err != nil {
			return err
		}
	}
	if err := work(dev, dir); err != nil {
		return err
	}
	documented := []string{"cluster", "job", "schedule"}
	for name, path := range map[string]string{"cluster": "/", "jobs": "/jobs", "job": "/jobs/3", "failed-job": "/jobs/2", "task": "/jobs/3/tasks/build/0", "logs": "/jobs/3/logs/build/1",
		"schedule": "/schedule", "tenants": "/tenants", "scheduler": "/scheduler", "events": "/events"} {
		if !all && !slices.Contains(documented, name) {
			continue
		}
		if err := shoot(ctx, dev, out, name, path, 1280, ""); err != nil {
			return err
		}
		if !all {
			continue
		}
		if err := shoot(ctx, dev, out, name+"-dark", path, 1280, "dark"); err != nil {
			return err
		}
		if err := shoot(ctx, dev, out, name+"-narrow", path, 400, ""); err != nil {
			return err
		}
	}
	return nil
}

// work submits the jobs and brings them into the states that the pictures show.
func work(dev *browser.Dev, dir string) error {
	for i, text := range jobs {
		file := filepath.Join(dir, fmt.Sprintf("%d.hcl", i))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		args := []string{"job", "run", file}
		if i >= 2 {
			args = []string{"job", "run", "-detach", file}
		}
		if i == 2 {
			args = []string{"job", "run", "-detach", "-deadline", "20m", file}
		}
		if _, err := dev.Run(args...); err != nil && i != 1 { // job 1 must fail
			return err
		}
	}
	time.Sleep(12 * time.Second) // so that the pages have some history
	if _, err := dev.Run("task", "suspend", "night-index", "build/0"); err != nil {
		return err
	}
	time.Sleep(12 * time.Second) // until the first sample of the scheduler
	return nil
}

// shoot takes a picture of one page.
func shoot(ctx context.Context, dev *browser.Dev, out, name, path string, width int64, scheme string) error {
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		return err
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(browser.Base(dev.Page)+path), chromedp.WaitVisible(chromedp.CSS(`.connection[data-state=live]`))); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	size, err := chromedp.Run(ctx, chromedp.Evaluate[[]float64](`[document.documentElement.scrollWidth, document.documentElement.scrollHeight]`))
	if err != nil {
		return err
	}
	if size[0] > float64(width) {
		fmt.Fprintf(os.Stderr, "pictures: %s is %.0f pixels wide on a screen of %d\n", name, size[0], width)
	}
	png, err := chromedp.Run(ctx, func(ctx context.Context, t *chromedp.Target) ([]byte, error) {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, int64(min(max(size[1], 400), 1800))), chromedp.Sleep(1500*time.Millisecond)); err != nil { // until the page has drawn its pictures
			return nil, err
		}
		return chromedp.CaptureScreenshot()(ctx, t)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(out, name+".png"), png, 0o644)
}

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// The scripts of the streaming word count, as a user would write them for a first job.
const (
	mapperScript = `import sys
for line in sys.stdin:
    for word in line.split():
        print(word, 1, sep="\t")
`
	reducerScript = `import sys
current, total = None, 0
for line in sys.stdin:
    word, _, number = line.rstrip("\n").partition("\t")
    if word != current:
        if current is not None:
            print(current, total, sep="\t")
        current, total = word, 0
    total += int(number)
if current is not None:
    print(current, total, sep="\t")
`
)

// readyLimit and endLimit are the time limits of the start and the end of `drover dev`.
const (
	readyLimit = 10 * time.Second
	endLimit   = 20 * time.Second
)

// withDev runs work beside a new `drover dev` with additional flags. It returns the CPU time of the
// whole process tree of `drover dev`, plus that of the clients that run jobs.
func (b *bench) withDev(work func(run func(file string) error) error, flags ...string) (cpu float64, err error) {
	data, err := os.MkdirTemp(b.dir, "dev-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(data)
	socket := filepath.Join(data, "s")
	dev := exec.Command(b.drover, append([]string{"dev", "-data", filepath.Join(data, "state"), "-socket", socket, "-ui", ""}, flags...)...)
	says, err := dev.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := dev.Start(); err != nil {
		return 0, err
	}
	kill := time.AfterFunc(readyLimit, func() { _ = dev.Process.Kill() })
	in := bufio.NewReader(says)
	line, err := in.ReadBytes('\n')
	kill.Stop()
	if err != nil || !bytes.HasPrefix(line, []byte("ready: ")) {
		_ = dev.Process.Kill()
		return 0, errors.Join(fmt.Errorf("drover dev is not ready: %q", line), err, dev.Wait())
	}
	rest := make(chan struct{})
	var log bytes.Buffer
	go func() { defer close(rest); _, _ = io.Copy(&log, in) }() // ends with the process
	workErr := work(func(file string) error {
		cmd := exec.CommandContext(b.ctx, b.drover, "-address", "unix://"+socket, "job", "run", file)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		cpu += cpuSeconds(cmd)
		return nil
	})
	kill = time.AfterFunc(endLimit, func() { _ = dev.Process.Kill() })
	defer kill.Stop()
	err = dev.Process.Signal(os.Interrupt)
	<-rest
	if err = errors.Join(workErr, err, dev.Wait()); err != nil {
		err = fmt.Errorf("%w\n%s", err, log.Bytes())
	}
	return cpu + cpuSeconds(dev), err
}

// cpuSeconds returns the CPU time of an ended process and of the children that it waited for.
func cpuSeconds(cmd *exec.Cmd) float64 {
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
}

// writeJobFile writes a job file and returns its path.
func (b *bench) writeJobFile(name, body string) string {
	file := b.path(name + ".hcl")
	// If the file cannot be written, the job fails with the file's name.
	_ = os.WriteFile(file, fmt.Appendf(nil, "job %q {\n  %s\n}\n", name, body), 0o644)
	return file
}

// wordCount counts the words of a file in a new `drover dev` and checks the result.
func (b *bench) wordCount(input, stages string) (resourceUse, error) {
	out := b.path("out")
	if err := os.RemoveAll(out); err != nil {
		return resourceUse{}, err
	}
	var u resourceUse
	var err error
	u.cpu, err = b.withDev(func(run func(string) error) error {
		start := time.Now()
		err := run(b.writeJobFile("words", fmt.Sprintf("input { path = \"file://%s\" }\n  output { path = \"file://%s\" }\n  %s", b.path(input), out, stages)))
		u.wall = time.Since(start).Seconds()
		return err
	})
	if err != nil {
		return resourceUse{}, err
	}
	return u, b.checkCounts(input, out)
}

// checkCounts checks that the counts of a result sum up to the number of words of its input.
func (b *bench) checkCounts(input, out string) error {
	want, err := countWords(b.path(input))
	if err != nil {
		return err
	}
	parts, err := filepath.Glob(filepath.Join(out, "part-*"))
	if err != nil || len(parts) == 0 {
		return errors.Join(fmt.Errorf("the word count of %s has no output in %s", input, out), err)
	}
	sum := int64(0)
	for _, p := range parts {
		n, err := sumCounts(p)
		if err != nil {
			return err
		}
		sum += n
	}
	if sum != want {
		return fmt.Errorf("the word count of %s is wrong: its counts sum up to %d, the text has %d words", input, sum, want)
	}
	return nil
}

// countWords counts the words of a file: sequences of bytes without ASCII white space, in any
// encoding. `wc -w` cannot be the reference: in the C locale it treats no byte above 127 as part of
// a word, and in other locales it knows more kinds of space.
func countWords(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	words, inWord := int64(0), false
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		for _, c := range buf[:n] {
			space := c == ' ' || c >= '\t' && c <= '\r'
			if !space && !inWord {
				words++
			}
			inWord = !space
		}
		if errors.Is(err, io.EOF) {
			return words, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// sumCounts sums up the numbers after the last tab of each line.
func sumCounts(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	sum := int64(0)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Bytes()
		n, err := strconv.ParseInt(string(line[bytes.LastIndexByte(line, '\t')+1:]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += n
	}
	return sum, lines.Err()
}

// runPipeline runs the streaming word count without Drover.
func (b *bench) runPipeline() (resourceUse, error) {
	cmd := exec.CommandContext(b.ctx, "sh", "-c", "python3 map.py < small.txt | sort | python3 reduce.py > hand.txt")
	// The environment is minimal, as in a task: PYTHONUNBUFFERED, for example, would make the
	// scripts three times slower.
	cmd.Dir, cmd.Env, cmd.Stderr = b.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "LC_ALL=C"}, os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return resourceUse{}, fmt.Errorf("without Drover: %w", err)
	}
	return resourceUse{time.Since(start).Seconds(), cpuSeconds(cmd)}, nil
}

// makeText writes size bytes of text: the files of a pattern repeatedly, or generated words with
// Zipf frequencies.
func makeText(file, pattern string, size int64) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if pattern == "" {
		writeWords(w, size)
	} else {
		err = copyFiles(w, pattern, size)
	}
	return errors.Join(err, w.Flush(), f.Close())
}

func copyFiles(w io.Writer, pattern string, size int64) error {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return errors.Join(fmt.Errorf("-text %s: no matching file", pattern), err)
	}
	for size > 0 {
		before := size
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			b = b[:min(size, int64(len(b)))]
			if _, err := w.Write(b); err != nil {
				return err
			}
			size -= int64(len(b))
		}
		if size == before {
			return fmt.Errorf("-text %s: the files are empty", pattern)
		}
	}
	return nil
}

// writeWords writes generated words, equal for equal sizes. The bufio.Writer retains errors.
func writeWords(w *bufio.Writer, size int64) {
	const vocabulary, letters = 60_000, "etaoinshrdlucmfwygpbvkxqjz"
	r := rand.New(rand.NewPCG(7, uint64(size)))
	words := make([][]byte, vocabulary)
	for i := range words {
		word := make([]byte, 2+r.IntN(4)+r.IntN(4))
		for k := range word {
			word[k] = letters[min(r.IntN(26), r.IntN(26))]
		}
		words[i] = word
	}
	zipf := rand.NewZipf(r, 1.1, 3, vocabulary-1)
	for column := 0; size > 0; size-- {
		word := words[zipf.Uint64()]
		word = word[:min(int64(len(word)), size-1)]
		_, _ = w.Write(word)
		size -= int64(len(word))
		if column += len(word) + 1; column > 72 || size == 1 {
			_ = w.WriteByte('\n')
			column = 0
		} else {
			_ = w.WriteByte(' ')
		}
	}
}

package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Client talks to the agent of one machine.
type Client struct {
	// Name is the machine's name, for errors.
	Name string
	// Dial connects to the agent.
	Dial func(context.Context) (net.Conn, error)
}

// Streams are the streams of a command. A nil input is empty, a nil output is discarded. Resize, if
// not nil, delivers the terminal's new size in rows and columns.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Resize   <-chan [2]uint16
}

// Do sends a request and copies the streams until the answer ends. The error is the agent's or the
// connection's; a command's failure is in End.Code.
func (c *Client) Do(ctx context.Context, r Request, s Streams) (End, error) {
	end, err := c.do(ctx, r, s)
	if err == nil && end.Error != "" {
		err = errors.New(end.Error)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%v)", ctx.Err(), err)
		}
		return end, fmt.Errorf("machine %s: %w", c.Name, err)
	}
	return end, nil
}

func (c *Client) do(ctx context.Context, r Request, s Streams) (End, error) {
	conn, err := c.Dial(ctx)
	if err != nil {
		return End{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	out := &frames{w: conn}
	if err := out.sendJSON(kindRequest, r); err != nil {
		return End{}, err
	}
	done := make(chan struct{})
	defer close(done)
	go sendInput(out, s.In) // ends when the connection is closed or the input ends
	if s.Resize != nil {
		go sendSizes(out, s.Resize, done)
	}
	return receive(bufio.NewReaderSize(conn, 64<<10), s)
}

func sendInput(out *frames, in io.Reader) {
	if in != nil {
		buffer := make([]byte, 256<<10)
		if _, err := io.CopyBuffer(struct{ io.Writer }{stream{out, kindInput}}, struct{ io.Reader }{in}, buffer); err != nil {
			return
		}
	}
	out.send(kindInputEnd, nil)
}

func sendSizes(out *frames, sizes <-chan [2]uint16, done <-chan struct{}) {
	for {
		select {
		case s := <-sizes:
			out.send(kindResize, []byte{byte(s[0] >> 8), byte(s[0]), byte(s[1] >> 8), byte(s[1])})
		case <-done:
			return
		}
	}
}

func receive(in io.Reader, s Streams) (End, error) {
	for {
		k, b, err := readFrame(in)
		switch {
		case err != nil:
			return End{}, fmt.Errorf("connection to its agent lost: %w", err)
		case k == kindOutput && s.Out != nil:
			_, err = s.Out.Write(b)
		case k == kindErrors && s.Err != nil:
			_, err = s.Err.Write(b)
		case k == kindEnd:
			var end End
			err := json.Unmarshal(b, &end)
			return end, err
		}
		if err != nil {
			return End{}, err
		}
	}
}

// SetClock sets the machine's clock to the host's. It does so twice, so that the second time takes
// a warm path and is off by less than one round trip.
func (c *Client) SetClock(ctx context.Context) error {
	for range 2 {
		if _, err := c.Do(ctx, Request{Op: Clock, Time: time.Now()}, Streams{}); err != nil {
			return err
		}
	}
	return nil
}

// PutFile copies a local file to the machine; mode 0 preserves the local file's mode.
func (c *Client) PutFile(ctx context.Context, local, remote string, mode os.FileMode) error {
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	if mode == 0 {
		i, err := f.Stat()
		if err != nil {
			return err
		}
		mode = i.Mode().Perm()
	}
	_, err = c.Do(ctx, Request{Op: Put, Path: remote, Mode: uint32(mode)}, Streams{In: f})
	return err
}

// GetFile copies a file of the machine to a local one, which is removed if the copy fails.
func (c *Client) GetFile(ctx context.Context, remote, local string) error {
	f, err := os.Create(local)
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, Request{Op: Get, Path: remote}, Streams{Out: f})
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(local))
	}
	return nil
}

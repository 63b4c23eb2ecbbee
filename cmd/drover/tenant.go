package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func tenantCommand() *cli.Command {
	return &cli.Command{
		Name:        "tenant",
		Usage:       "tenants: fair shares, caps and rights",
		Subcommands: []*cli.Command{tenantApplyCommand(), tenantListCommand(), tenantDeleteCommand()},
	}
}

// tenantFile is the file format of `tenant apply`.
type tenantFile struct {
	Tenants []tenantBlock `hcl:"tenant,block"`
}

type tenantBlock struct {
	Name     string   `hcl:"name,label"`
	Parent   string   `hcl:"parent,optional"`
	Weight   *float64 `hcl:"weight,optional"`
	UID      int      `hcl:"uid,optional"`
	HDFSUser string   `hcl:"hdfs_user,optional"`
	Submit   []string `hcl:"submit,optional"`
	Operate  []string `hcl:"operate,optional"`
	Read     []string `hcl:"read,optional"`
	Cap      *vector  `hcl:"cap,block"`
	TaskCap  *vector  `hcl:"task_cap,block"`
}

type vector struct {
	CPU    string `hcl:"cpu,optional"`
	Memory string `hcl:"memory,optional"`
	IO     string `hcl:"io,optional"`
}

func (v *vector) resources() (*droverv1.Resources, error) {
	r := &droverv1.Resources{}
	if v == nil {
		return r, nil
	}
	for _, f := range []struct {
		text  string
		to    *int64
		parse func(string) (int64, error)
	}{{v.CPU, &r.Cpu, jobspec.ParseCPU}, {v.Memory, &r.Memory, jobspec.ParseSize}, {v.IO, &r.Io, jobspec.ParseRate}} {
		if f.text == "" {
			continue
		}
		n, err := f.parse(f.text)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, fmt.Errorf("%q is zero, which would be no cap: give more, or leave it out", f.text)
		}
		*f.to = n
	}
	return r, nil
}

func tenantApplyCommand() *cli.Command {
	return &cli.Command{
		Name:      "apply",
		Usage:     "create or change the tenants in a file",
		ArgsUsage: "FILE.hcl",
		Description: "tenant \"analytics\" {\n  parent    = \"research\"\n  weight    = 2\n  uid       = 2001\n  hdfs_user = \"analytics\"\n" +
			"  submit    = [\"alice\"]\n  operate   = [\"ops\"]\n  read      = [\"bob\"]\n  cap {\n    cpu    = \"64\"\n    memory = \"256GiB\"\n  }\n}\n" +
			"What the file leaves out of a tenant gets its default, also if the tenant had another value before.",
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "FILE.hcl")
			if err != nil {
				return err
			}
			tenants, err := readTenants(a[0])
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			warnings := lostUIDs(c.Context, cl, tenants)
			res, err := cl.ApplyTenants(c.Context, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: tenants}))
			if err != nil {
				return cl.classifyError(err)
			}
			fmt.Fprintf(c.App.Writer, "%d of %d tenants changed\n", res.Msg.Changed, len(tenants))
			for _, w := range warnings {
				fmt.Fprintf(c.App.ErrWriter, "warning: %s\n", w)
			}
			return nil
		},
	}
}

// lostUIDs returns a warning for each tenant that has a uid and would lose it: an attribute that a
// file leaves out is not kept, and nodes run no tasks without a uid. It returns none if the present
// tenants cannot be read; applying the file then reports the problem.
func lostUIDs(ctx context.Context, cl *client, tenants []*droverv1.Tenant) (warnings []string) {
	if !slices.ContainsFunc(tenants, func(t *droverv1.Tenant) bool { return t.GetUid() == 0 }) {
		return nil
	}
	res, err := cl.ListTenants(ctx, connect.NewRequest(&droverv1.ListTenantsRequest{}))
	if err != nil {
		return nil
	}
	former := map[string]uint32{}
	for _, t := range res.Msg.GetTenants() {
		former[t.GetTenant().GetName()] = t.GetTenant().GetUid()
	}
	for _, t := range tenants {
		if uid := former[t.GetName()]; uid != 0 && t.GetUid() == 0 {
			warnings = append(warnings, fmt.Sprintf("tenant %q had uid %d and has none now, so that nodes refuse its tasks: write uid = %d into the file", t.GetName(), uid, uid))
		}
	}
	return warnings
}

func readTenants(name string) ([]*droverv1.Tenant, error) {
	src, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.New(fault.Invalid, "tenant file: %w", err)
	}
	return parseTenants(name, src)
}

// decodeTenants reads JSON from a file that is called so, and HCL from any other.
func decodeTenants(name string, src []byte, into *tenantFile) hcl.Diagnostics {
	parse := func() (*hcl.File, hcl.Diagnostics) { return hclsyntax.ParseConfig(src, name, hcl.InitialPos) }
	if filepath.Ext(name) == ".json" {
		parse = func() (*hcl.File, hcl.Diagnostics) { return json.Parse(src, name) }
	}
	f, diags := parse()
	if diags.HasErrors() {
		return diags
	}
	return append(diags, gohcl.DecodeBody(f.Body, nil, into)...)
}

// parseTenants reads the text of a tenant file.
func parseTenants(name string, src []byte) ([]*droverv1.Tenant, error) {
	var f tenantFile
	if diags := decodeTenants(name, src, &f); diags.HasErrors() {
		return nil, cmp.Or(wrongFile("tenant", name, src), fault.New(fault.Invalid, "%s", diagnosticsText(diags)))
	}
	out, seen := make([]*droverv1.Tenant, 0, len(f.Tenants)), map[string]bool{}
	for _, t := range f.Tenants {
		if seen[t.Name] {
			return nil, fault.New(fault.Invalid, "%s: tenant %q stands there twice: leave one of them out", name, t.Name)
		}
		seen[t.Name] = true
		if t.UID < 0 || t.UID > 1<<31 {
			return nil, fault.New(fault.Invalid, "%s: tenant %q: uid %d is out of range", name, t.Name, t.UID)
		}
		limit, err := t.Cap.resources()
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: cap of tenant %q: %w", name, t.Name, err)
		}
		task, err := t.TaskCap.resources()
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: task_cap of tenant %q: %w", name, t.Name, err)
		}
		weight := 1.0
		if t.Weight != nil {
			if weight = *t.Weight; !(weight > 0) {
				return nil, fault.New(fault.Invalid, "%s: tenant %q: weight %g; give a number above 0, or leave it out for 1", name, t.Name, weight)
			}
		}
		out = append(out, &droverv1.Tenant{Name: t.Name, Parent: t.Parent, Weight: weight, Uid: uint32(t.UID), HdfsUser: t.HDFSUser,
			Submit: t.Submit, Operate: t.Operate, Read: t.Read, Cap: limit, TaskCap: task})
	}
	return out, nil
}

func tenantListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "tenants, their shares and usage",
		Flags: []cli.Flag{jsonFlag},
		Action: show(func(cl *client) method[droverv1.ListTenantsRequest, droverv1.ListTenantsResponse] {
			return cl.ListTenants
		}, printTenants),
	}
}

func tenantDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete a tenant",
		ArgsUsage: "NAME",
		Description: "Refused while it has live jobs, tenants below it or stored secrets. Its jobs of the past stay in the history, for\n" +
			"operators and for those who submitted them. Nobody can submit to it any more, until it is applied again.",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.DeleteTenant(c.Context, connect.NewRequest(&droverv1.DeleteTenantRequest{Name: a[0]}))
			if err != nil {
				return cl.classifyError(err)
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res.Msg)
			}
			fmt.Fprintf(c.App.Writer, "tenant %s is deleted\n", res.Msg.GetName())
			return nil
		},
	}
}

// capText formats a cap, in which zero is none; empty if it has no part.
func capText(r *droverv1.Resources) string {
	var parts []string
	if r.GetCpu() > 0 {
		parts = append(parts, jobspec.FormatCPU(r.Cpu)+" cpu")
	}
	if r.GetMemory() > 0 {
		parts = append(parts, jobspec.FormatSize(r.Memory))
	}
	if r.GetIo() > 0 {
		parts = append(parts, jobspec.FormatRate(r.Io))
	}
	return strings.Join(parts, ", ")
}

func printTenants(w io.Writer, m *droverv1.ListTenantsResponse) {
	rows := make([][]string, 0, len(m.Tenants))
	for _, t := range m.Tenants {
		rows = append(rows, []string{t.Tenant.Name, t.Tenant.Parent, fmt.Sprintf("%g", t.Tenant.Weight), fmt.Sprint(t.Jobs), vectorText(t.Used), fmt.Sprintf("%.1f%%", 100*t.DominantShare), capText(t.Tenant.Cap), capText(t.Tenant.TaskCap)})
	}
	printTable(w, []string{"tenant", "parent", "weight", "jobs", "in use", "dominant share", "cap", "task cap"}, rows)
	for _, t := range m.Tenants {
		if text := preemptedText(t.Preempted); text != "" {
			fmt.Fprintf(w, "%s: %s\n", t.Tenant.Name, text)
		}
	}
}

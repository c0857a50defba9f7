// SPDX-License-Identifier: Apache-2.0

// Package printers shows experiments as kubectl shows objects: as a table, or
// with -o in any form that kubectl get knows.
package printers

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// View is something to show.
type View struct {
	// Tables are printed one below the other, with an empty line between.
	Tables []*metav1.Table
	// Object is the JSON shape, with apiVersion and kind.
	Object any
	// Names are the lines of -o name.
	Names []string
	// CSV are the lines of -o csv, headers first; nil: those of the first table.
	CSV [][]string
}

// Flags are the output flags of a command. The zero value prints tables.
type Flags struct {
	Output    string
	NoHeaders bool
}

const customColumns = "custom-columns"

// Formats lists what -o accepts, sorted as kubectl's help has it.
var formats = "(json, yaml, name, wide, csv, go-template, go-template-file, template, templatefile, jsonpath, jsonpath-as-json, jsonpath-file, custom-columns, custom-columns-file)"

// AddFlags binds -o and --no-headers.
func (f *Flags) AddFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&f.Output, "output", "o", f.Output, "Output format. One of: "+formats)
	fs.BoolVar(&f.NoHeaders, "no-headers", f.NoHeaders, "Print tables without headers")
}

// Printer prints Views in the format that was chosen.
type Printer func(w io.Writer, v View) error

// Printer checks the flags and returns the printer they ask for.
func (f *Flags) Printer() (Printer, error) {
	format, spec, _ := strings.Cut(f.Output, "=")
	switch format {
	case "", "wide":
		return tables(printers.PrintOptions{Wide: format == "wide", NoHeaders: f.NoHeaders}), nil
	case "name":
		return names, nil
	case "csv":
		return f.csv, nil
	case customColumns:
		return columns(spec, f.NoHeaders)
	case customColumns + "-file":
		text, err := os.ReadFile(spec)
		if err != nil {
			return nil, fmt.Errorf("--output %s: %w", format, err)
		}
		return columnsFile(string(text), f.NoHeaders)
	}
	generic := genericclioptions.NewPrintFlags("").WithTypeSetter(runtime.NewScheme())
	*generic.OutputFormat = f.Output
	printer, err := generic.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, fmt.Errorf("--output %s is not known; allowed formats are: %s", f.Output, formats)
	} else if err != nil {
		return nil, fmt.Errorf("--output: %w", err)
	}
	return func(w io.Writer, v View) error {
		object, err := toObject(v.Object)
		if err != nil {
			return err
		}
		return printer.PrintObj(object, w)
	}, nil
}

func tables(options printers.PrintOptions) Printer {
	return func(w io.Writer, v View) error {
		for i, table := range v.Tables {
			if i > 0 {
				if _, err := fmt.Fprintln(w); err != nil {
					return err
				}
			}
			if err := printers.NewTablePrinter(options).PrintObj(table, w); err != nil {
				return err
			}
		}
		return nil
	}
}

func names(w io.Writer, v View) error {
	for _, name := range v.Names {
		if _, err := fmt.Fprintln(w, name); err != nil {
			return err
		}
	}
	return nil
}

// csv prints figures with all their digits.
func (f *Flags) csv(w io.Writer, v View) error {
	lines := v.CSV
	if lines == nil && len(v.Tables) > 0 {
		lines = cells(v.Tables[0])
	}
	if f.NoHeaders && len(lines) > 0 {
		lines = lines[1:]
	}
	return csv.NewWriter(w).WriteAll(lines)
}

func cells(t *metav1.Table) [][]string {
	lines := [][]string{nil}
	for _, c := range t.ColumnDefinitions {
		lines[0] = append(lines[0], c.Name)
	}
	for _, r := range t.Rows {
		var line []string
		for _, cell := range r.Cells {
			line = append(line, fmt.Sprint(cell))
		}
		lines = append(lines, line)
	}
	return lines
}

// toObject gives a value the form that kubectl's printers take.
func toObject(v any) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &object.Object); err != nil {
		return nil, err
	}
	return object, nil
}

// columns prints chosen fields: NAME:.name,STATUS:.status. kubectl has the same,
// but in a package that brings its whole command line along.
func columns(spec string, noHeaders bool) (Printer, error) {
	if spec == "" {
		return nil, errors.New("--output custom-columns needs columns, such as custom-columns=NAME:.name,STATUS:.status")
	}
	var headers, paths []string
	for _, column := range strings.Split(spec, ",") {
		header, path, ok := strings.Cut(column, ":")
		if !ok || path == "" {
			return nil, fmt.Errorf("--output custom-columns: %q must be HEADER:path", column)
		}
		headers, paths = append(headers, header), append(paths, path)
	}
	return columnPrinter(headers, paths, noHeaders)
}

// columnsFile reads a line of headers and a line of paths.
func columnsFile(text string, noHeaders bool) (Printer, error) {
	lines := strings.SplitN(strings.TrimSpace(text), "\n", 2)
	if len(lines) < 2 || len(strings.Fields(lines[0])) != len(strings.Fields(lines[1])) {
		return nil, errors.New("--output custom-columns-file: needs a line of headers and a line with a path for each")
	}
	return columnPrinter(strings.Fields(lines[0]), strings.Fields(lines[1]), noHeaders)
}

func columnPrinter(headers, paths []string, noHeaders bool) (Printer, error) {
	cells := make([]printers.ResourcePrinter, len(paths))
	for i, path := range paths {
		path = strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}")
		p, err := printers.NewJSONPathPrinter("{" + "." + strings.TrimPrefix(path, ".") + "}")
		if err != nil {
			return nil, fmt.Errorf("--output custom-columns: %s: %w", path, err)
		}
		p.AllowMissingKeys(true)
		cells[i] = p
	}
	return func(w io.Writer, v View) error {
		object, err := toObject(v.Object)
		if err != nil {
			return err
		}
		rows := []unstructured.Unstructured{*object}
		if object.IsList() {
			list, err := object.ToList()
			if err != nil {
				return err
			}
			rows = list.Items
		}
		tab := tabwriter.NewWriter(w, 6, 4, 3, ' ', 0)
		if !noHeaders {
			if _, err := fmt.Fprintln(tab, strings.Join(headers, "\t")); err != nil {
				return err
			}
		}
		for i := range rows {
			line := make([]string, len(cells))
			for j, cell := range cells {
				var b bytes.Buffer
				if err := cell.PrintObj(&rows[i], &b); err != nil {
					return err
				}
				if line[j] = b.String(); line[j] == "" {
					line[j] = none
				}
			}
			if _, err := fmt.Fprintln(tab, strings.Join(line, "\t")); err != nil {
				return err
			}
		}
		return tab.Flush()
	}, nil
}

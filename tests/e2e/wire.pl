# In the place of graphrun-httpd, where that is not built: its own callers, who hold 7 conversations of 3 turns with names, as
# `callers.pl URL TOKEN talks 7 3` does. The ids of each go to the file that TALKED names.
use strict;
$| = 1;
<STDIN>; # the token
print "{\"port\": 1}\n";
my ($n, $turns, $call) = (7, 3, 0);
my @context = map { [5, 6, 7 + $_] } 0 .. $n - 1;
for (1 .. $turns) {
    my %of;
    for my $i (0 .. $n - 1) {
        $of{++$call} = $i;
        printf "{\"call\":%d,\"method\":\"POST\",\"path\":\"/session/talk%d/inference/v1/generate\",\"body\":{\"token_ids\":[%s],\"sampling_params\":{\"max_tokens\":4}}}\n",
            $call, $i, join(",", @{$context[$i]});
    }
    while (%of) {
        my $line = <STDIN> // exit 1;
        my ($which, $status) = $line =~ /"call":(\d+),"status":(\d+)/ or die $line;
        my ($ids) = $line =~ /"token_ids":\[([0-9,]*)\]/;
        die $line if $status != 200;
        push @{$context[delete $of{$which}]}, split(/,/, $ids), 8;
    }
}
open(my $f, ">", "$ENV{TALKED}.new") or die;
print $f join(",", @$_), "\n" for @context;
close $f;
rename("$ENV{TALKED}.new", $ENV{TALKED});
1 while <STDIN>;

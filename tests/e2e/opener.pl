# An environment for tests that opens its conversations: a start is answered with a message of the user, of another length for each
# sequence of a group, and every other group also with tools; a turn with a message that says how many tokens it had. It pays a tenth a
# token, and is done where the model writes a 3 after its first turn. Its argument is another way: tools, text or none: of these
# alone a start; slow: at random times; die: once, at a turn; bad-messages, bad-tool, template, long: what a start cannot say.
use strict;
use Fcntl;
$| = 1;
my $way   = shift // "";
my $tools = '"tools":[{"type":"function","function":{"name":"add"}},{"type":"function","function":{"name":"mul"}}]';
my %start = (
    "tools"        => $tools,
    "text"         => "\"text\":\"go\",$tools",
    "none"         => "",
    "bad-messages" => '"messages":[{"content":"go"}]',
    "bad-tool"     => '"tools":["add"]',
    "template"     => '"messages":[{"role":"ghost","content":"go"}]',
    "long"         => '"messages":[{"role":"user","content":"' . "x" x 100 . '"}]',
);
while (my $line = <STDIN>) {
    my ($id) = $line =~ /"id":(\d+)/;
    next if $line =~ /"type":"end"/;
    select(undef, undef, undef, rand() / 50) if $way eq "slow";
    if ($line =~ /"type":"start"/) {
        my ($question) = $line =~ /"question":"([^"]*)"/;
        my $seq = $id % (1 << 24);
        my $open = $start{$way} // '"messages":[{"role":"user","content":"' . "x" x ($seq % 7) . "$question\"}]" . (int($seq / 4) % 2 ? "" : ",$tools");
        print "{\"id\":$id", $open ? ",$open" : "", "}\n";
        next;
    }
    my ($ids)  = $line =~ /"token_ids":\[([^]]*)\]/;
    my ($turn) = $line =~ /"turn":(\d+)/;
    my ($text) = $line =~ /"text":"([^"]*)"/;
    my $n      = () = $ids =~ /\d+/g;
    exit 3 if $way eq "die" && $turn == 1 && sysopen(my $f, "died", O_WRONLY | O_CREAT | O_EXCL);
    my $done = $turn && $text =~ /3/ ? "true" : "false";
    printf "{\"id\":%d,\"messages\":[{\"role\":\"user\",\"content\":\"+%d\"}],\"done\":%s,\"reward\":%g,\"metrics\":{\"calls\":1}}\n",
        $id, $n, $done, $n / 10;
}
